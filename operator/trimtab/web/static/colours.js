// @ts-check
// Colours: Okabe and Ito's, which people with any colour vision can tell apart, and one scale from dark to light.
export const dark = matchMedia("(prefers-color-scheme: dark)");

const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a6ff0"];
/** Jobs beyond the hues get them again lighter and darker, in an order in which neighbours differ. */
const SHADES = [0, 0.28, -0.25, 0.48];
export const THEME = {
  light: { free: "#dfe5ea", hidden: "#8b96a3", foreign: "#b3a89b", gone: "#f3d3cf", back: "#ffffff", line: "#c9d1d9", ink: "#1d2733", dim: "#5b6875", strong: "#000000" },
  dark: { free: "#2a333d", hidden: "#6b7784", foreign: "#5d5347", gone: "#5a2a26", back: "#151b22", line: "#333e4a", ink: "#d9e0e7", dim: "#97a4b1", strong: "#ffffff" },
};
export const theme = () => (dark.matches ? THEME.dark : THEME.light);
export const STATES = ["well", "throttled", "fault", "lost", "slow"];
const STATE_COLOURS = ["#009e73", "#e69f00", "#d55e00", "#a3002b", "#cc79a7"];

/** @param {string} hex @param {number} by from -1 (black) to 1 (white) */
function shade(hex, by) {
  const to = by > 0 ? 255 : 0;
  const parts = [1, 3, 5].map((at) => Math.round(parseInt(hex.slice(at, at + 2), 16) * (1 - Math.abs(by)) + to * Math.abs(by)));
  return `#${parts.map((each) => each.toString(16).padStart(2, "0")).join("")}`;
}
/** The colour of the nth thing. @param {number} n */
export const hue = (n) => shade(HUES[n % HUES.length], SHADES[Math.floor(n / HUES.length) % SHADES.length]);
/** A scale that is read by lightness alone (cividis-like: blue to yellow). */
const SCALE = ["#10316b", "#38496c", "#5c616e", "#7d7a77", "#a39672", "#cdb660", "#fdea45"];
/** @param {number} share from 0 to 1 */
export function scale(share) {
  const at = Math.max(0, Math.min(0.9999, share)) * (SCALE.length - 1), low = Math.floor(at), part = at - low;
  const mix = [1, 3, 5].map((from) => {
    const a = parseInt(SCALE[low].slice(from, from + 2), 16), b = parseInt(SCALE[low + 1].slice(from, from + 2), 16);
    return Math.round(a + (b - a) * part).toString(16).padStart(2, "0");
  });
  return `#${mix.join("")}`;
}
/** What a colour of the map may tell. */
export const MODES = [
  ["job", "Job"], ["queue", "Queue"], ["use", "Use"], ["state", "Health"], ["temp", "Temperature"], ["until", "Time until free"],
];

/**
 * Colours of all GPUs: a function from index to a colour, and what stands in the legend.
 * @param {string} mode @param {Record<string, any[]>} columns @param {number} now
 * @returns {{of: (gpu: number) => string, legend: [string, string][]}}
 */
export function painter(mode, columns, now) {
  const colours = theme(), job = columns["gpu.job"] || [];
  const nobody = { "-1": colours.free, "-2": colours.hidden, "-3": colours.foreign, "-4": colours.gone };
  /** @type {[string, string][]} */
  const others = [["free", colours.free], ["somebody else's", colours.hidden], ["foreign", colours.foreign]];
  const steps = Array.from({ length: 101 }, (_, at) => scale(at / 100));
  if (mode === "use" || mode === "temp") {
    const values = columns[`gpu.${mode}`] || [], [low, high] = mode === "use" ? [0, 100] : [25, 95];
    const unit = mode === "use" ? "%" : "°C";
    const known = (/** @type {number} */ value) => mode === "use" ? value >= 0 : value > -300;
    return {
      of: (gpu) => known(values[gpu]) ? steps[Math.round(Math.max(0, Math.min(100, (100 * (values[gpu] - low)) / (high - low))))] : colours.free,
      legend: [[`${low} ${unit}`, steps[0]], [`${(low + high) / 2} ${unit}`, steps[50]], [`${high} ${unit}`, steps[100]], ["not known", colours.free]],
    };
  }
  if (mode === "state") {
    const values = columns["gpu.state"] || [];
    return {
      of: (gpu) => job[gpu] === -4 ? colours.gone : values[gpu] === 0 ? (job[gpu] === -1 ? colours.free : shade(STATE_COLOURS[0], dark.matches ? -0.45 : 0.55)) : STATE_COLOURS[values[gpu]],
      legend: [["well", shade(STATE_COLOURS[0], dark.matches ? -0.45 : 0.55)], ...STATES.slice(1).map((name, at) => /** @type {[string, string]} */ ([name, STATE_COLOURS[at + 1]])), ["free", colours.free], ["gone", colours.gone]],
    };
  }
  if (mode === "until") {
    const ends = columns["job.end"] || [];
    const byJob = ends.map((end) => (end ? steps[Math.round(100 * (1 - Math.min(1, Math.max(0, Math.log10(Math.max(1, (end - now) / 360)) / 3))))] : colours.hidden));
    return {
      of: (gpu) => (job[gpu] < 0 ? nobody[/** @type {"-1"} */ (String(job[gpu]))] : byJob[job[gpu]]),
      legend: [["minutes", steps[100]], ["hours", steps[60]], ["days", steps[15]], ["end not known", colours.hidden], ["free", colours.free]],
    };
  }
  const keys = mode === "queue" ? columns["job.queue"] || [] : columns["job.key"] || [];
  const held = new Map();
  for (const at of job) if (at >= 0) held.set(keys[at], (held.get(keys[at]) || 0) + 1);
  const place = mode === "queue" ? new Map([...new Set(keys)].sort().map((key, at) => [key, at])) : new Map(keys.map((key, at) => [key, at]));
  const byJob = keys.map((key) => hue(place.get(key) ?? 0));
  const most = [...held].sort((a, b) => b[1] - a[1]).slice(0, mode === "queue" ? 12 : 6);
  return {
    of: (gpu) => (job[gpu] < 0 ? nobody[/** @type {"-1"} */ (String(job[gpu]))] : byJob[job[gpu]]),
    legend: [...most.map(([key]) => /** @type {[string, string]} */ ([key || "no queue", hue(place.get(key) ?? 0)])), ...(held.size > most.length ? [/** @type {[string, string]} */ ([`and ${held.size - most.length} more`, "transparent"])] : []), ...others],
  };
}
