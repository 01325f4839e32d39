// @ts-check
// The map: where each node and GPU is drawn, and the drawing itself. Cells are written into one buffer of pixels, which
// the canvas takes at once: 32,000 of them cost a few milliseconds whatever draws the page. Names, the pointer and the
// chosen node lie on a second canvas above.
import { theme } from "./colours.js";

const HEADING = 22, LABEL = 13, GAP = 10;
/** Below so many pixels a GPU, a node is one square. */
const LEAST_CELL = 3;
/** A GPU is never larger: a small cluster need not fill a large screen. */
export const LARGEST_CELL = 40;

/**
 * Rows of nodes in order of their place: zone, block, rack, link domain, then name.
 * @param {Record<string, any[]>} columns @returns {{name: string, groups: {name: string, nodes: number[]}[]}[]}
 */
export function grouped(columns) {
  const names = columns["node.name"] || [], get = (/** @type {string} */ key, /** @type {number} */ at) => columns[`node.${key}`][at];
  const order = names.map((_, at) => at).filter((at) => names[at]);
  const key = (/** @type {number} */ at) => [get("zone", at), get("block", at), get("rack", at), get("link", at)];
  const outer = new Map();
  for (const at of order) {
    const [zone, block, rack, domain] = key(at);
    const type = columns.type[get("type", at)] || "GPU type not known";
    const above = [zone, block].filter(Boolean).join(" / ");
    const inner = rack || domain ? [rack, domain !== rack ? domain : ""].filter(Boolean).join(" · ") : type;
    if (!outer.has(above)) outer.set(above, new Map());
    const groups = outer.get(above);
    if (!groups.has(inner)) groups.set(inner, []);
    groups.get(inner).push(at);
  }
  const natural = new Intl.Collator("en", { numeric: true }).compare;
  return [...outer].sort((a, b) => natural(a[0], b[0])).map(([name, groups]) => ({
    name,
    groups: [.../** @type {Map<string, number[]>} */ (groups)].sort((a, b) => natural(a[0], b[0]))
      .map(([inner, nodes]) => ({ name: inner, nodes: nodes.sort((a, b) => natural(names[a], names[b])) })),
  }));
}

/** Columns of GPUs in a node: 8 are 4×2, 4 are 2×2. @param {number} gpus */
const across = (gpus) => Math.max(1, Math.ceil(Math.sqrt(gpus * (gpus > 4 ? 1.6 : 1))));

/**
 * Where everything lies, in CSS pixels, for cells of one size.
 * @param {ReturnType<typeof grouped>} sections @param {number[]} gpus @param {number} width @param {number} cell
 */
export function layout(sections, gpus, width, cell) {
  const pitch = cell >= 5 ? cell + 1 : cell, square = cell < LEAST_CELL;
  const node = new Map(), labels = [], racks = [];
  const gap = cell >= 5 ? GAP : 6, between = cell >= 5 ? 3 : 1;
  const named = cell >= LEAST_CELL;
  const sized = (/** @type {{name: string, nodes: number[]}} */ group) => {
    const most = Math.max(...group.nodes.map((at) => gpus[at] || 1));
    const wide = square ? 2 * cell + 2 : across(most) * pitch, high = square ? wide : Math.ceil(most / across(most)) * pitch;
    const ideal = Math.max(1, Math.round(Math.sqrt((group.nodes.length * (high + between)) / (wide + between))));
    const columns = Math.max(1, Math.min(group.nodes.length, ideal, Math.floor((width - 8) / (wide + between))));
    const top = named ? LABEL : 0;
    return { group, most, wide, high, columns, top, w: Math.max(columns * (wide + between), named ? Math.min(24, width - 8) : 0), h: Math.ceil(group.nodes.length / columns) * (high + between) + top };
  };
  // Small sections lie side by side, so that hundreds of blocks fit; `begin` is the left edge of the one being laid.
  let y = 4, x = 4, tallest = 0, used = 4, last = 4;
  for (const section of sections) {
    const boxes = section.groups.map(sized);
    const whole = Math.max(section.name ? Math.min(width - 8, 7 * section.name.length) : 0, boxes.reduce((sum, box) => sum + box.w + gap, 0));
    if (used > 4 && used + whole > width - 4) { y = last; used = 4; }
    const start = y, begin = used;
    let down = start;
    if (section.name) {
      labels.push({ x: begin, y: down + 15, text: section.name, heading: true, width: Math.min(whole, width - 8) });
      down += HEADING;
    }
    x = begin;
    tallest = 0;
    for (const { group, most, wide, high, columns, top, w, h } of boxes) {
      if (x > begin && x + w > width - 4) { x = begin; down += tallest + gap; tallest = 0; }
      if (named) labels.push({ x, y: down + 9, text: group.name, heading: false, width: w });
      racks.push({ x, y: down, w, h, name: group.name, nodes: group.nodes });
      group.nodes.forEach((at, n) => node.set(at, {
        x: x + (n % columns) * (wide + between), y: down + top + Math.floor(n / columns) * (high + between), w: wide, h: high, per: across(most),
      }));
      x += w + gap;
      tallest = Math.max(tallest, h);
    }
    used = begin + whole + gap;
    last = Math.max(start === y && begin > 4 ? last : 0, down + tallest + gap);
  }
  y = last;
  return { node, labels, racks, height: Math.ceil(y), cell, pitch, square, order: [...node.keys()] };
}

/** The largest cells with which all is seen at once. @param {ReturnType<typeof grouped>} sections @param {number[]} gpus @param {number} width @param {number} height */
export function fitting(sections, gpus, width, height) {
  let low = 1, high = LARGEST_CELL;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (layout(sections, gpus, width, middle).height <= height) low = middle;
    else high = middle - 1;
  }
  return low;
}

const parsed = new Map();
/** A colour as the buffer has it (little-endian RGBA). @param {string} hex */
function pixel(hex) {
  let value = parsed.get(hex);
  if (value === undefined) {
    value = ((255 << 24) | (parseInt(hex.slice(5, 7), 16) << 16) | (parseInt(hex.slice(3, 5), 16) << 8) | parseInt(hex.slice(1, 3), 16)) >>> 0;
    parsed.set(hex, value);
  }
  return value;
}

/** Draws one map on two canvases that lie on each other. */
export class GpuMap {
  /** @param {HTMLCanvasElement} below @param {HTMLCanvasElement} above */
  constructor(below, above) {
    this.below = below;
    this.above = above;
    this.top = 0;
    this.chosen = this.pointed = -1;
    /** Job whose GPUs are shown alone, -1 for none. */
    this.only = -1;
    /** @type {Set<number> | null} */
    this.found = null;
    /** @type {number[]} milliseconds of the last drawings, for whoever measures. */
    this.frames = [];
  }

  /** @param {number} width @param {number} height */
  resize(width, height) {
    const ratio = Math.min(2, devicePixelRatio || 1);
    this.ratio = ratio;
    this.width = width;
    this.height = height;
    for (const canvas of [this.below, this.above]) {
      canvas.width = Math.max(1, Math.round(width * ratio));
      canvas.height = Math.max(1, Math.round(height * ratio));
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.pen = this.below.getContext("2d", { alpha: false });
    this.image = this.pen?.createImageData(this.below.width, this.below.height);
    this.pixels = new Uint32Array(/** @type {ImageData} */ (this.image).data.buffer);
    this.clear();
  }

  /** Forget what is drawn. */
  clear() {
    this.drawn = null;
  }

  /** @param {ReturnType<typeof layout>} plan @param {Record<string, any[]>} columns @param {(gpu: number) => string} colour */
  draw(plan, columns, colour) {
    const began = performance.now();
    const all = !this.drawn || this.drawn.plan !== plan || this.drawn.top !== this.top;
    const count = (columns["gpu.job"] || []).length;
    if (all) {
      this.pixels?.fill(pixel(theme().back));
      this.drawn = { plan, top: this.top, values: new Uint32Array(count) };
    } else if (this.drawn && this.drawn.values.length !== count) this.drawn = { plan, top: this.top, values: new Uint32Array(count) };
    const at = columns["node.at"], gpus = columns["node.gpus"], job = columns["gpu.job"], state = columns["gpu.state"];
    const faded = pixel(theme().free), values = /** @type {any} */ (this.drawn).values;
    const bottom = this.top + (this.height || 0);
    for (const node of plan.order) {
      const box = plan.node.get(node);
      if (!box || box.y > bottom || box.y + box.h < this.top) continue;
      const hide = this.found !== null && !this.found.has(node);
      const tell = (/** @type {number} */ gpu) => hide || (this.only >= 0 && job[gpu] !== this.only) ? faded : pixel(colour(gpu));
      if (plan.square) {
        const from = at[node];
        let gpu = from;
        for (let each = from; each < from + gpus[node]; each++) if (state[each] === 2 || state[each] === 3) gpu = each;
        if (gpu === from) gpu = from + (gpus[node] >> 1);
        const value = gpus[node] ? tell(gpu) : faded;
        if (values[from] !== value) { values[from] = value; this.fill(box.x, box.y, box.w, box.h, value); }
        continue;
      }
      for (let n = 0; n < gpus[node]; n++) {
        const gpu = at[node] + n, value = tell(gpu);
        if (values[gpu] === value) continue;
        values[gpu] = value;
        this.fill(box.x + (n % box.per) * plan.pitch, box.y + Math.floor(n / box.per) * plan.pitch, plan.cell, plan.cell, value);
      }
    }
    if (this.image) this.pen?.putImageData(this.image, 0, 0);
    this.frames.push(performance.now() - began);
    if (this.frames.length > 240) this.frames.shift();
    if (all) this.annotate(plan, columns);
  }

  /** @param {number} x @param {number} y @param {number} w @param {number} h @param {number} value */
  fill(x, y, w, h, value) {
    const ratio = this.ratio || 1, stride = this.below.width;
    const left = Math.round(x * ratio), right = Math.min(stride, Math.round((x + w) * ratio));
    const from = Math.max(0, Math.round((y - this.top) * ratio)), to = Math.min(this.below.height, Math.round((y - this.top + h) * ratio));
    for (let row = from; row < to; row++) this.pixels?.fill(value, row * stride + left, row * stride + right);
  }

  /** Names of places, and frames around what is pointed at and chosen. @param {ReturnType<typeof layout>} plan @param {Record<string, any[]>} columns */
  annotate(plan, columns) {
    const pen = this.above.getContext("2d"), colours = theme();
    if (!pen) return;
    pen.setTransform(this.ratio || 1, 0, 0, this.ratio || 1, 0, 0);
    pen.clearRect(0, 0, this.width || 0, this.height || 0);
    const family = "ui-monospace, 'DejaVu Sans Mono', monospace";
    for (const label of plan.labels) {
      const y = label.y - this.top;
      if (y < -20 || y > (this.height || 0) + 20) continue;
      pen.font = label.heading ? `600 12px system-ui, 'DejaVu Sans', sans-serif` : `9px ${family}`;
      pen.fillStyle = label.heading ? colours.ink : colours.dim;
      const space = label.heading ? label.width : label.width + 6, unit = pen.measureText("m").width;
      const room = Math.max(1, Math.floor(space / unit));
      pen.fillText(label.text.length > room ? `…${label.text.slice(-Math.max(1, room - 1))}` : label.text, label.x, y);
    }
    for (const [at, wide] of [[this.pointed, 1], [this.chosen, 2.5]]) {
      const box = plan.node.get(at);
      if (!box || !columns["node.name"]?.[at]) continue;
      pen.strokeStyle = colours.strong;
      pen.lineWidth = wide;
      pen.strokeRect(box.x - 1.5, box.y - this.top - 1.5, box.w + 2, box.h + 2);
    }
  }

  /** The node at a point of the canvas, -1 for none; and its GPU. @param {ReturnType<typeof layout>} plan @param {number} x @param {number} y @param {number[]} gpus */
  hit(plan, x, y, gpus) {
    const down = y + this.top;
    for (const rack of plan.racks) {
      if (x < rack.x - 2 || x > rack.x + rack.w + 2 || down < rack.y || down > rack.y + rack.h + 2) continue;
      for (const node of rack.nodes) {
        const box = plan.node.get(node);
        if (x >= box.x && x < box.x + box.w + 1 && down >= box.y && down < box.y + box.h + 1) {
          const n = Math.floor((down - box.y) / plan.pitch) * box.per + Math.floor((x - box.x) / plan.pitch);
          return { node, gpu: plan.square || n >= gpus[node] ? -1 : n };
        }
      }
    }
    return { node: -1, gpu: -1 };
  }

  /** The next node in a direction, from the middle of one. @param {ReturnType<typeof layout>} plan @param {number} from @param {string} key */
  static beside(plan, from, key) {
    const box = plan.node.get(from);
    if (!box) return plan.order[0] ?? -1;
    const [dx, dy] = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] })[key];
    let best = from, least = Infinity;
    for (const [at, other] of plan.node) {
      const x = other.x + other.w / 2 - box.x - box.w / 2, y = other.y + other.h / 2 - box.y - box.h / 2;
      const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
      if (at !== from && along > 0.5 && along + 3 * aside < least) { least = along + 3 * aside; best = at; }
    }
    return best;
  }
}
