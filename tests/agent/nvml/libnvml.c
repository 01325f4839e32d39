/* libnvidia-ml.so.1 without a GPU: the real symbols and struct layouts of NVML, answers from a text file.
 *
 * The file (path in $NVML_SCENARIO, read again whenever it changed) says what each call answers:
 *
 *     [node]                        # of the machine
 *     driver = 580.95.05            # the kernel's driver; another one than LIBRARY_VERSION is a mismatch
 *     [gpu *]                       # of every GPU that does not say otherwise
 *     power = 412000 ~ 30000        # a number, here one that swings by 30000 over a minute
 *     nvlink.tx = 0 + 2000000       # a counter that grows by so many a second
 *     [gpu 3]                       # of one GPU; sections of numbers make GPUs, in that order
 *     power = !NO_PERMISSION        # an error; what is not written is !NOT_SUPPORTED
 *     status = !GPU_IS_LOST         # an error of every call about this GPU; as `dying`, of all but handle and UUID
 *     dies.after = 12               # is lost after so many calls since this was written; of [node], the driver is gone
 *     event = xid 79                # happens when the line appears, for those who listen by then
 *
 * As in the real one, GPUs are found by nvmlInit and not later, nvmlDeviceGetPcieThroughput takes 20 ms, and sizes and
 * versions are checked before anything is written. One thread at a time. -DOLD_DRIVER leaves out what came after R470.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef LIBRARY_VERSION
#define LIBRARY_VERSION "580.95.05"
#endif
#define API __attribute__((visibility("default")))

/* ---- What NVML's ABI says ---- */

#define RETURNS(X) \
    X(SUCCESS, 0) X(UNINITIALIZED, 1) X(INVALID_ARGUMENT, 2) X(NOT_SUPPORTED, 3) X(NO_PERMISSION, 4) X(NOT_FOUND, 6) \
    X(INSUFFICIENT_SIZE, 7) X(DRIVER_NOT_LOADED, 9) X(TIMEOUT, 10) X(LIBRARY_NOT_FOUND, 12) X(FUNCTION_NOT_FOUND, 13) \
    X(GPU_IS_LOST, 15) X(RESET_REQUIRED, 16) X(OPERATING_SYSTEM, 17) X(LIB_RM_VERSION_MISMATCH, 18) X(NO_DATA, 21) \
    X(ARGUMENT_VERSION_MISMATCH, 25) X(DEPRECATED, 26) X(GPU_NOT_FOUND, 28) X(UNKNOWN, 999)
#define AS_ENUM(name, number) NVML_##name = number,
typedef enum { RETURNS(AS_ENUM) } nvmlReturn_t;

typedef struct device *nvmlDevice_t;
typedef struct event_set *nvmlEventSet_t;

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned version, sensorType; int temperature; } nvmlTemperature_v1_t;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
typedef union { double dVal; unsigned uiVal; unsigned long ulVal; unsigned long long ullVal; long long sllVal; int siVal; } nvmlValue_t;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType, nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

#define VERSIONED(type, version) ((unsigned)sizeof(type) | (unsigned)(version) << 24)
enum { EVENT_DOUBLE_BIT = 2, EVENT_XID = 8, NVLINK_TO_GPU = 0, NVLINK_TO_SWITCH = 2 };
enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3, P2P_INDEX_NVLINK = 2, P2P_NOT_SUPPORTED = 5 };
static const unsigned long long NOT_AVAILABLE = ~0ULL;

/* Offsets and sizes, for the test that holds them against the definitions of NVIDIA's own packages. */
typedef struct { const char *type, *field; size_t offset, size; } Layout;
#define FIELD(type, field) {#type, #field, offsetof(type, field), sizeof(((type *)0)->field)}
#define WHOLE(type) {#type, "", 0, sizeof(type)}
API const Layout layouts[] = {
    WHOLE(nvmlMemory_t), FIELD(nvmlMemory_t, total), FIELD(nvmlMemory_t, free), FIELD(nvmlMemory_t, used),
    WHOLE(nvmlMemory_v2_t), FIELD(nvmlMemory_v2_t, version), FIELD(nvmlMemory_v2_t, total),
    FIELD(nvmlMemory_v2_t, reserved), FIELD(nvmlMemory_v2_t, free), FIELD(nvmlMemory_v2_t, used),
    WHOLE(nvmlUtilization_t), FIELD(nvmlUtilization_t, gpu), FIELD(nvmlUtilization_t, memory),
    WHOLE(nvmlTemperature_v1_t), FIELD(nvmlTemperature_v1_t, version), FIELD(nvmlTemperature_v1_t, sensorType),
    FIELD(nvmlTemperature_v1_t, temperature),
    WHOLE(nvmlPciInfo_t), FIELD(nvmlPciInfo_t, busIdLegacy), FIELD(nvmlPciInfo_t, domain), FIELD(nvmlPciInfo_t, bus),
    FIELD(nvmlPciInfo_t, device), FIELD(nvmlPciInfo_t, pciDeviceId), FIELD(nvmlPciInfo_t, pciSubSystemId),
    FIELD(nvmlPciInfo_t, busId),
    WHOLE(nvmlProcessInfo_t), FIELD(nvmlProcessInfo_t, pid), FIELD(nvmlProcessInfo_t, usedGpuMemory),
    FIELD(nvmlProcessInfo_t, gpuInstanceId), FIELD(nvmlProcessInfo_t, computeInstanceId),
    WHOLE(nvmlFieldValue_t), FIELD(nvmlFieldValue_t, fieldId), FIELD(nvmlFieldValue_t, scopeId),
    FIELD(nvmlFieldValue_t, timestamp), FIELD(nvmlFieldValue_t, latencyUsec), FIELD(nvmlFieldValue_t, valueType),
    FIELD(nvmlFieldValue_t, nvmlReturn), FIELD(nvmlFieldValue_t, value),
    WHOLE(nvmlEventData_t), FIELD(nvmlEventData_t, device), FIELD(nvmlEventData_t, eventType),
    FIELD(nvmlEventData_t, eventData), FIELD(nvmlEventData_t, gpuInstanceId), FIELD(nvmlEventData_t, computeInstanceId),
    WHOLE(nvmlDeviceAttributes_t), FIELD(nvmlDeviceAttributes_t, multiprocessorCount),
    FIELD(nvmlDeviceAttributes_t, gpuInstanceSliceCount), FIELD(nvmlDeviceAttributes_t, computeInstanceSliceCount),
    FIELD(nvmlDeviceAttributes_t, memorySizeMB),
    {NULL, NULL, 0, 0},
};

/* ---- The scenario ---- */

enum { NODE = -2, ALL_GPUS = -1, MOST_ENTRIES = 1024, MOST_GPUS = 64, MOST_PARTS = 8, MOST_EVENTS = 256 };
typedef struct { int section; char key[40], value[200]; } Entry;
static Entry entries[MOST_ENTRIES];
static int entry_count, readable, node_calls, gpu_calls[MOST_GPUS];
static struct stat seen;
static struct timespec loaded;

static char *trimmed(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    char *end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1])) *--end = 0;
    return text;
}

static void parse(FILE *file) {
    char line[300], *equals;
    int section = NODE;
    entry_count = node_calls = 0;
    memset(gpu_calls, 0, sizeof gpu_calls);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "#")] = 0;
        char *text = trimmed(line);
        if (!strcmp(text, "[node]")) section = NODE;
        else if (!strcmp(text, "[gpu *]")) section = ALL_GPUS;
        else if (sscanf(text, "[gpu %d]", &section) == 1) continue;
        else if ((equals = strchr(text, '=')) && entry_count < MOST_ENTRIES) {
            Entry *entry = &entries[entry_count++];
            *equals = 0;
            entry->section = section;
            snprintf(entry->key, sizeof entry->key, "%s", trimmed(text));
            snprintf(entry->value, sizeof entry->value, "%s", trimmed(equals + 1));
        }
    }
}

static void refresh(void) {
    const char *path = getenv("NVML_SCENARIO");
    struct stat now;
    if (!path || stat(path, &now)) { readable = 0; return; }
    if (readable && !memcmp(&now.st_mtim, &seen.st_mtim, sizeof now.st_mtim) && now.st_ino == seen.st_ino &&
        now.st_size == seen.st_size) return;
    FILE *file = fopen(path, "r");
    readable = file != NULL;
    if (!file) return;
    parse(file);
    fclose(file);
    seen = now;
    if (!loaded.tv_sec) clock_gettime(CLOCK_MONOTONIC, &loaded);
}

static const char *own(int section, const char *key) {
    for (int i = 0; i < entry_count; i++)
        if (entries[i].section == section && !strcmp(entries[i].key, key)) return entries[i].value;
    return NULL;
}

static const char *lookup(int section, const char *key) {
    const char *value = own(section, key);
    return value || section == NODE ? value : own(ALL_GPUS, key);
}

static int exists(int section) {
    for (int i = 0; i < entry_count; i++) if (entries[i].section == section) return 1;
    return 0;
}

static nvmlReturn_t error_of(const char *value) {
    if (!value) return NVML_NOT_SUPPORTED;
    if (*value != '!') return NVML_SUCCESS;
#define AS_COMPARISON(name, number) if (!strcmp(value + 1, #name)) return NVML_##name;
    RETURNS(AS_COMPARISON)
    return NVML_UNKNOWN;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - loaded.tv_sec) + 1e-9 * (double)(now.tv_nsec - loaded.tv_nsec);
}

/* `80G`, `100 + 5` (grows by 5 a second), `100 ~ 5` (swings by 5 over a minute, each GPU in its own phase), `-1`. */
static unsigned long long number(const char *text, int section) {
    char *rest;
    if (*text == '-') return (unsigned long long)strtoll(text, NULL, 0);
    unsigned long long value = strtoull(text, &rest, 0);
    if (*rest == 'M') value <<= 20, rest++;
    if (*rest == 'G') value <<= 30, rest++;
    rest += strspn(rest, " ");
    if (*rest == '+') value += (unsigned long long)(seconds() * strtod(rest + 1, NULL));
    if (*rest == '~') {
        double turn = seconds() / 60 + section * 0.13, phase = turn - (double)(long long)turn;
        double wave = phase < 0.5 ? 4 * phase - 1 : 3 - 4 * phase;
        value = (unsigned long long)((double)value + wave * strtod(rest + 1, NULL));
    }
    return value;
}

/* ---- Handles ---- */

struct device { int section, index, part; };   /* part: -1 for the whole GPU */
struct event_set { int used; unsigned long long types[MOST_GPUS]; int delivered[MOST_GPUS]; };
static struct device gpus[MOST_GPUS], parts[MOST_GPUS][MOST_PARTS];
static struct event_set sets[4];
static int gpu_count, initialised;

static nvmlReturn_t node_status(void) {
    refresh();
    if (!readable) return NVML_DRIVER_NOT_LOADED;
    const char *driver = lookup(NODE, "driver"), *status = lookup(NODE, "status"), *limit = lookup(NODE, "dies.after");
    if (limit && node_calls++ >= atoi(limit)) return NVML_LIB_RM_VERSION_MISMATCH;
    if (status && error_of(status)) return error_of(status);
    return driver && strcmp(driver, LIBRARY_VERSION) ? NVML_LIB_RM_VERSION_MISMATCH : NVML_SUCCESS;
}

static nvmlReturn_t enter(void) { return initialised ? node_status() : NVML_UNINITIALIZED; }

static int is_part(nvmlDevice_t device) { return device >= &parts[0][0] && device < &parts[0][0] + MOST_GPUS * MOST_PARTS; }

static nvmlReturn_t reach(nvmlDevice_t device) {
    nvmlReturn_t result = enter();
    if (result) return result;
    if (!is_part(device) && !(device >= gpus && device < gpus + gpu_count)) return NVML_INVALID_ARGUMENT;
    const char *limit = lookup(device->section, "dies.after");
    if (!exists(device->section) || (limit && gpu_calls[device->section]++ >= atoi(limit))) return NVML_GPU_IS_LOST;
    const char *status = lookup(device->section, "status");
    return status ? error_of(status) : NVML_SUCCESS;
}

static nvmlReturn_t enter_device(nvmlDevice_t device) {
    nvmlReturn_t result = reach(device);
    const char *dying = result ? NULL : lookup(device->section, "dying");
    return dying ? error_of(dying) : result;
}

static nvmlReturn_t text_of(nvmlDevice_t device, const char *key, const char **value) {
    nvmlReturn_t result = enter_device(device);
    if (result) return result;
    *value = lookup(device->section, key);
    return error_of(*value);
}

static nvmlReturn_t wide_of(nvmlDevice_t device, const char *key, unsigned long long *value) {
    const char *text;
    nvmlReturn_t result = text_of(device, key, &text);
    if (!result) *value = number(text, device->section);
    return result;
}

static nvmlReturn_t unsigned_of(nvmlDevice_t device, const char *key, unsigned *value) {
    unsigned long long wide;
    if (!value) return NVML_INVALID_ARGUMENT;
    nvmlReturn_t result = wide_of(device, key, &wide);
    if (!result) *value = (unsigned)wide;
    return result;
}

static nvmlReturn_t copied(const char *text, char *buffer, unsigned length) {
    if (!buffer) return NVML_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length) return NVML_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

/* The n-th line `key = ...` of one GPU's own section. */
static const char *nth(int section, const char *key, int n) {
    for (int i = 0; i < entry_count; i++)
        if (entries[i].section == section && !strcmp(entries[i].key, key) && n-- == 0) return entries[i].value;
    return NULL;
}

/* ---- The library and the machine ---- */

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    nvmlReturn_t result = node_status();
    if (result || initialised++) return result;
    gpu_count = 0;
    for (int section = 0; section < MOST_GPUS; section++) {
        if (!exists(section)) continue;
        for (int part = 0; part < MOST_PARTS; part++) parts[gpu_count][part] = (struct device){section, gpu_count, part};
        gpus[gpu_count] = (struct device){section, gpu_count, -1};
        gpu_count++;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    if (!initialised) return NVML_UNINITIALIZED;
    if (!--initialised) memset(sets, 0, sizeof sets);
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t code) {
#define AS_TEXT(name, number) if (code == NVML_##name) return #name;
    RETURNS(AS_TEXT)
    return "UNKNOWN";
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    nvmlReturn_t result = enter();
    return result ? result : copied(LIBRARY_VERSION, version, length);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) { return copied("13." LIBRARY_VERSION, version, length); }

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    nvmlReturn_t result = enter();
    if (!result) *count = (unsigned)gpu_count;
    return result;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    nvmlReturn_t result = enter();
    if (result) return result;
    if (index >= (unsigned)gpu_count) return NVML_INVALID_ARGUMENT;
    if ((result = reach(&gpus[index]))) return result;
    *device = &gpus[index];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t result = enter();
    for (int i = 0; !result && i < gpu_count; i++) {
        const char *own_uuid = own(gpus[i].section, "uuid");
        if (own_uuid && !strcmp(own_uuid, uuid)) { *device = &gpus[i]; return NVML_SUCCESS; }
    }
    return result ? result : NVML_NOT_FOUND;
}

/* ---- What a GPU is ---- */

/* `part = MIG-... 1g.10gb MEMORY_MIB GPU_SLICES COMPUTE_SLICES` */
typedef struct { char uuid[64], name[64]; unsigned memory, slices, compute_slices; } Part;

static nvmlReturn_t part_of(nvmlDevice_t device, Part *part) {
    const char *line = nth(device->section, "part", device->part);
    if (!line) return NVML_NOT_FOUND;
    return sscanf(line, "%63s %63s %u %u %u", part->uuid, part->name, &part->memory, &part->slices,
                  &part->compute_slices) == 5 ? NVML_SUCCESS : NVML_UNKNOWN;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    const char *text;
    char full[200];
    Part part;
    nvmlReturn_t result = text_of(device, "name", &text);
    if (result) return result;
    if (!is_part(device)) return copied(text, name, length);
    if ((result = part_of(device, &part))) return result;
    if (lookup(device->section, "part.names") == NULL) return copied(text, name, length);
    snprintf(full, sizeof full, "%s MIG %s", text, part.name);
    return copied(full, name, length);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    const char *text;
    Part part;
    nvmlReturn_t result = reach(device);
    if (result || (result = error_of(text = lookup(device->section, "uuid")))) return result;
    if (!is_part(device)) return copied(text, uuid, length);
    return (result = part_of(device, &part)) ? result : copied(part.uuid, uuid, length);
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    nvmlReturn_t result = enter_device(device);
    if (!result) *index = (unsigned)device->index;
    return result;
}

static nvmlReturn_t pci(const char *address, nvmlPciInfo_t *info) {
    memset(info, 0, sizeof *info);
    if (sscanf(address, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3) return NVML_UNKNOWN;
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", info->domain, info->bus, info->device);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus & 0xff,
             info->device & 0xff);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    const char *address;
    nvmlReturn_t result = text_of(device, "pci", &address);
    return result ? result : pci(address, info);
}

/* `0-31,64-95` as bits. */
static void set_bits(const char *ranges, unsigned words, unsigned long *bits) {
    memset(bits, 0, words * sizeof *bits);
    for (char *rest = (char *)ranges; *rest; rest += *rest == ',') {
        char *start = rest;
        unsigned long first = strtoul(rest, &rest, 10), last = first;
        if (*rest == '-') last = strtoul(rest + 1, &rest, 10);
        if (rest == start) return;
        for (unsigned long bit = first; bit <= last && bit < words * 64UL; bit++) bits[bit / 64] |= 1UL << bit % 64;
    }
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *bits) {
    const char *ranges;
    nvmlReturn_t result = text_of(device, "cpus", &ranges);
    if (!result) set_bits(ranges, words, bits);
    return result;
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *bits, unsigned scope) {
    const char *ranges;
    nvmlReturn_t result = scope > 1 ? NVML_INVALID_ARGUMENT : text_of(device, "numa", &ranges);
    if (!result) set_bits(ranges, words, bits);
    return result;
}

/* ---- How it is doing: one number each ---- */

#define UNSIGNED(function, key) \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned *value) { return unsigned_of(device, key, value); }
UNSIGNED(nvmlDeviceGetPowerUsage, "power")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power.limit")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.generation")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.generation.max")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width.max")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig.max")

static const char *const CLOCKS[] = {"clock.graphics", "clock.sm", "clock.memory", "clock.video"};
static const char *const MAX_CLOCKS[] = {"clock.graphics.max", "clock.sm.max", "clock.memory.max", "clock.video.max"};

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *value) {
    return type > 3 ? NVML_INVALID_ARGUMENT : unsigned_of(device, CLOCKS[type], value);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *value) {
    return type > 3 ? NVML_INVALID_ARGUMENT : unsigned_of(device, MAX_CLOCKS[type], value);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *value) {
    return sensor ? NVML_INVALID_ARGUMENT : unsigned_of(device, "temperature", value);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *value) {
    if (counter > 1) return NVML_INVALID_ARGUMENT;
    usleep(20000);
    return unsigned_of(device, counter ? "pcie.throughput.rx" : "pcie.throughput.tx", value);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return wide_of(device, "throttle", reasons);
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *value) {
    nvmlReturn_t result = unsigned_of(device, "utilization.gpu", &value->gpu);
    return result ? result : unsigned_of(device, "utilization.memory", &value->memory);
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *value) {
    unsigned long long total, used, reserved = 0;
    nvmlReturn_t result = wide_of(device, "memory.total", &total);
    if (result || (result = wide_of(device, "memory.used", &used))) return result;
    wide_of(device, "memory.reserved", &reserved);
    *value = (nvmlMemory_t){total, total - used - reserved, used + reserved};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                           unsigned *pending, unsigned *failed) {
    const char *text;
    nvmlReturn_t result = text_of(device, "rows", &text);   /* rows = CORRECTED UNCORRECTED PENDING FAILED */
    if (result) return result;
    return sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? NVML_SUCCESS : NVML_UNKNOWN;
}

/* ---- Field values ---- */

typedef struct { unsigned id; const char *key; unsigned type; int of_links; } Field;
static const Field FIELDS[] = {
    {3, "ecc.corrected", VALUE_UNSIGNED_LONG_LONG, 0},
    {4, "ecc.uncorrected", VALUE_UNSIGNED_LONG_LONG, 0},
    {91, "nvlink.count", VALUE_UNSIGNED_INT, 0},
#ifndef OLD_DRIVER
    {186, "power", VALUE_UNSIGNED_INT, 0},
#endif
    {138, "nvlink.tx", VALUE_UNSIGNED_LONG_LONG, 1},
    {139, "nvlink.rx", VALUE_UNSIGNED_LONG_LONG, 1},
#ifndef OLD_DRIVER
    {197, "pcie.tx", VALUE_UNSIGNED_LONG_LONG, 0},
    {198, "pcie.rx", VALUE_UNSIGNED_LONG_LONG, 0},
#endif
};

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    nvmlReturn_t result = enter_device(device);
    if (result) return result;
    if (count < 1 || !values) return NVML_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *value = &values[i];
        value->nvmlReturn = NVML_NOT_SUPPORTED;
        for (size_t f = 0; f < sizeof FIELDS / sizeof *FIELDS; f++) {
            if (FIELDS[f].id != value->fieldId) continue;
            /* counters of all links together are asked for with the scope ~0; of one link, they are not scripted */
            if (FIELDS[f].of_links && value->scopeId != ~0U) break;
            unsigned long long wide = 0;
            value->nvmlReturn = wide_of(device, FIELDS[f].key, &wide);
            value->valueType = FIELDS[f].type;
            value->value.ullVal = NOT_AVAILABLE;   /* what an unsigned int leaves above it is rubbish */
            if (FIELDS[f].type == VALUE_UNSIGNED_INT) value->value.uiVal = (unsigned)wide;
            else value->value.ullVal = wide;
        }
    }
    return NVML_SUCCESS;
}

/* ---- Links ---- */

/* `nvlink.down = 3,4` are the links that are not up; `nvlink.peers = 1 1 2 2` the GPUs at their other ends, else switches */
API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active) {
    unsigned count;
    nvmlReturn_t result = unsigned_of(device, "nvlink.count", &count);
    if (result) return result;
    if (link >= count) return NVML_INVALID_ARGUMENT;
    const char *down = lookup(device->section, "nvlink.down");
    unsigned long bits[1] = {0};
    if (down) set_bits(down, 1, bits);
    *active = !(bits[0] >> link & 1);
    return NVML_SUCCESS;
}

static int peer(nvmlDevice_t device, unsigned link) {
    char *rest = (char *)lookup(device->section, "nvlink.peers"), *start = rest;
    long section = -1;
    for (unsigned i = 0; rest && i <= link; i++, start = rest) {
        section = strtol(start, &rest, 10);
        if (rest == start) return -1;
    }
    return (int)section;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type) {
    unsigned active;
    nvmlReturn_t result = nvmlDeviceGetNvLinkState(device, link, &active);
    if (!result) *type = peer(device, link) < 0 ? NVLINK_TO_SWITCH : NVLINK_TO_GPU;
    return result;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *info) {
    unsigned active;
    nvmlReturn_t result = nvmlDeviceGetNvLinkState(device, link, &active);
    if (result) return result;
    int section = peer(device, link);
    const char *address = section < 0 ? "00000000:05:00.0" : own(section, "pci");
    return address ? pci(address, info) : NVML_NOT_SUPPORTED;
}

/* `near = 1 10, 2 30` in a GPU's section: the common ancestor with those; else that of the node's `ancestor` */
API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level) {
    nvmlReturn_t result = enter_device(one);
    if (result || (result = enter_device(other))) return result;
    struct device *pair[2][2] = {{one, other}, {other, one}};
    for (int way = 0; way < 2; way++) {
        const char *near = own(pair[way][0]->section, "near");
        for (; near && *near; near = strchr(near, ',') ? strchr(near, ',') + 1 : NULL) {
            int section;
            if (sscanf(near, "%d %u", &section, level) == 2 && section == pair[way][1]->section) return NVML_SUCCESS;
        }
    }
    const char *ancestor = lookup(NODE, "ancestor");
    if (!error_of(ancestor)) *level = (unsigned)number(ancestor, 0);
    return error_of(ancestor);
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned index, unsigned *status) {
    nvmlReturn_t result = enter_device(one);
    if (result || (result = enter_device(other))) return result;
    if (index > 4) return NVML_INVALID_ARGUMENT;
    if (index == P2P_INDEX_NVLINK && !lookup(one->section, "nvlink.count")) *status = P2P_NOT_SUPPORTED;
    else *status = lookup(NODE, "p2p") ? (unsigned)number(lookup(NODE, "p2p"), 0) : 0;
    return NVML_SUCCESS;
}

/* ---- Partitions and processes ---- */

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    nvmlReturn_t result = unsigned_of(device, "mig", current);
    if (!result) *pending = *current;
    return result;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *part) {
    nvmlReturn_t result = enter_device(device);
    if (result) return result;
    if (is_part(device) || index >= MOST_PARTS) return NVML_INVALID_ARGUMENT;
    if (!nth(device->section, "part", (int)index)) return NVML_NOT_FOUND;
    *part = &parts[device->index][index];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t part, nvmlDevice_t *device) {
    nvmlReturn_t result = enter_device(part);
    if (result) return result;
    *device = &gpus[part->index];
    return is_part(part) ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    Part part;
    nvmlReturn_t result = enter_device(device);
    if (result) return result;
    if (!is_part(device)) return NVML_NOT_SUPPORTED;
    if ((result = part_of(device, &part))) return result;
    memset(attributes, 0, sizeof *attributes);
    attributes->gpuInstanceSliceCount = part.slices;
    attributes->computeInstanceSliceCount = part.compute_slices;
    attributes->memorySizeMB = part.memory;
    return NVML_SUCCESS;
}

/* `process = PID MEMORY`, the memory of `-1` for not available; a line each */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    nvmlReturn_t result = enter_device(device);
    if (result) return result;
    const char *refused = lookup(device->section, "processes");
    if (refused && error_of(refused)) return error_of(refused);
    unsigned room = *count, n = 0;
    for (const char *line; (line = nth(device->section, "process", (int)n)); n++) {
        char *memory;
        if (!infos || n >= room) continue;
        memset(&infos[n], 0xff, sizeof infos[n]);
        infos[n].pid = (unsigned)strtoul(line, &memory, 10);
        infos[n].usedGpuMemory = number(trimmed(memory), device->section);
    }
    *count = n;
    return n && (!infos || n > room) ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    return processes(device, count, infos);
}

/* ---- Events ---- */

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t result = enter();
    if (result) return result;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (!sets[i].used) { sets[i].used = 1; *set = &sets[i]; return NVML_SUCCESS; }
    return NVML_UNKNOWN;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    if (!initialised) return NVML_UNINITIALIZED;
    memset(set, 0, sizeof *set);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    return wide_of(device, "events", types);
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    unsigned long long supported;
    nvmlReturn_t result = wide_of(device, "events", &supported);
    if (result) return result;
    if (types & ~supported) return NVML_NOT_SUPPORTED;
    set->types[device->index] |= types;
    while (nth(device->section, "event", set->delivered[device->index])) set->delivered[device->index]++;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds) {
    nvmlReturn_t result = enter();
    for (int i = 0; !result && i < gpu_count; i++) {
        for (const char *line; set->types[i] && (line = nth(gpus[i].section, "event", set->delivered[i]));) {
            unsigned long long type = strncmp(line, "dbe", 3) ? EVENT_XID : EVENT_DOUBLE_BIT;
            set->delivered[i]++;
            if (!(set->types[i] & type)) continue;
            *data = (nvmlEventData_t){&gpus[i], type, strtoull(line + 3, NULL, 10), ~0U, ~0U};
            return NVML_SUCCESS;
        }
    }
    if (!result && milliseconds) usleep(milliseconds * 1000);
    return result ? result : NVML_TIMEOUT;
}

/* ---- What came after R470 ---- */
#ifndef OLD_DRIVER

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *value) {
    nvmlMemory_t plain;
    unsigned long long reserved = 0;
    if (value->version != VERSIONED(nvmlMemory_v2_t, 2)) return NVML_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result) return result;
    wide_of(device, "memory.reserved", &reserved);
    *value = (nvmlMemory_v2_t){value->version, plain.total, reserved, plain.free, plain.used - reserved};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *value) {
    unsigned degrees;
    if (value->version != VERSIONED(nvmlTemperature_v1_t, 1)) return NVML_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetTemperature(device, value->sensorType, &degrees);
    if (!result) value->temperature = (int)degrees;
    return result;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return wide_of(device, "throttle", reasons);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    return processes(device, count, infos);
}
#endif
