// @ts-check
// Cluster: every GPU where it stands; the same as a table below.
import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { MODES, STATES, dark, painter } from "../colours.js";
import { GpuMap, LARGEST_CELL, fitting, grouped, layout } from "../map.js";
import { JobLink, Panel, Table, html } from "../parts.js";
import { columns, now, tick, whoami } from "../store.js";
import { minutes } from "../format.js";

const WORDS = /** @type {Record<string, string>} */ ({ "-1": "free", "-2": "somebody else's job", "-3": "foreign", "-4": "gone" });
const holder = (/** @type {number} */ gpu) => { const at = columns["gpu.job"][gpu]; return at >= 0 ? columns["job.key"][at] : WORDS[at]; };
const figure = (/** @type {number} */ value, /** @type {string} */ unit, /** @type {number} */ least = 0) => value < least ? "–" : `${value} ${unit}`;

/** What one looks for: a part of a node's, a place's or a job's name. @param {string} text @returns {Set<number> | null} */
function find(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const jobs = new Set();
  (columns["job.key"] || []).forEach((key, at) => { if (key.toLowerCase().includes(wanted) || (columns["job.queue"][at] || "").toLowerCase() === wanted) jobs.add(at); });
  const found = new Set();
  (columns["node.name"] || []).forEach((name, at) => {
    if (!name) return;
    const words = [name, ...["zone", "block", "rack", "link"].map((each) => columns[`node.${each}`][at]), columns.type[columns["node.type"][at]] || ""];
    if (words.some((each) => each.toLowerCase().includes(wanted))) found.add(at);
    else for (let gpu = columns["node.at"][at]; gpu < columns["node.at"][at] + columns["node.gpus"][at]; gpu++) if (jobs.has(columns["gpu.job"][gpu])) { found.add(at); break; }
  });
  return found;
}

/** @param {number} at */
function summary(at) {
  const from = columns["node.at"][at], count = columns["node.gpus"][at], jobs = new Map();
  let free = 0, bad = 0, use = 0, known = 0;
  for (let gpu = from; gpu < from + count; gpu++) {
    const job = columns["gpu.job"][gpu];
    if (job === -1) free++;
    else if (job !== -4) jobs.set(job, (jobs.get(job) || 0) + 1);
    if (columns["gpu.state"][gpu] > 1) bad++;
    if (columns["gpu.use"][gpu] >= 0) { use += columns["gpu.use"][gpu]; known++; }
  }
  return { at, name: columns["node.name"][at], type: columns.type[columns["node.type"][at]] || "", count, free, bad, use: known ? Math.round(use / known) : -1, why: columns["node.why"][at], jobs,
    place: ["zone", "block", "rack", "link"].map((each) => columns[`node.${each}`][at]).filter((each, n, all) => each && all.indexOf(each) === n).join(" / ") };
}

/** @param {{at: number}} props */
function Chosen({ at }) {
  if (at < 0 || !columns["node.name"]?.[at]) return html`<${Panel} title="Node"><p class="dim">Choose a node: click it, or move to the map and use the arrow keys. Enter opens the job that holds most of it; + and − change the size, 0 shows all.</p><//>`;
  const node = summary(at), from = columns["node.at"][at], kept = columns["node.kept"]?.[at] ?? -1, speed = columns["node.speed"]?.[at] ?? 100;
  return html`<${Panel} title=${node.name}><dl class="told"><div><dt>Type</dt><dd>${node.count}×${node.type || "not known"}</dd></div>${node.place && html`<div><dt>Place</dt><dd>${node.place}</dd></div>`}<div><dt>Free</dt><dd>${node.free} of ${node.count}</dd></div>
    ${node.why && html`<div><dt>Takes no pods</dt><dd class="warned">${node.why}</dd></div>`}${speed !== 100 && html`<div><dt>Speed</dt><dd>${speed} % of its type</dd></div>`}${kept >= 0 && html`<div><dt>Kept for</dt><dd><${JobLink} name=${columns["job.key"][kept]} /></dd></div>`}
    ${[...node.jobs].map(([job, count]) => html`<div key=${job}><dt>${count} GPU${count === 1 ? "" : "s"}</dt><dd>${job >= 0 ? html`<${JobLink} name=${columns["job.key"][job]} />${columns["job.end"][job] ? html` <span class="dim small">until ~${minutes(columns["job.end"][job] - now())} from now</span>` : ""}` : WORDS[job]}</dd></div>`)}</dl>
    <${Table} caption=${`GPUs of ${node.name}`} rows=${Array.from({ length: node.count }, (_, n) => n)} columns=${[
      ["GPU", (/** @type {number} */ n) => n], ["Use", (/** @type {number} */ n) => figure(columns["gpu.use"][from + n], "%"), undefined, "right"], ["Mem", (/** @type {number} */ n) => figure(columns["gpu.memory"][from + n], "%"), undefined, "right"],
      ["Temp", (/** @type {number} */ n) => figure(columns["gpu.temp"][from + n], "°C", -299), undefined, "right"], ["State", (/** @type {number} */ n) => columns["gpu.state"][from + n] ? html`<span class="warned">${STATES[columns["gpu.state"][from + n]]}</span>` : columns["gpu.job"][from + n] === -1 ? "free" : "well"],
    ]} /><//>`;
}

/** The canvas and all that moves on it. @param {any} props */
function Canvas({ sections, mode, found, chosen, choose, size, setSize, drawn }) {
  const box = useRef(/** @type {any} */ (null)), below = useRef(/** @type {any} */ (null)), above = useRef(/** @type {any} */ (null)), map = useRef(/** @type {GpuMap | null} */ (null));
  const [space, measure] = useState({ width: 0, height: 0 }), [tip, point] = useState(/** @type {any} */ (null)), [night, setNight] = useState(dark.matches);
  const gpus = columns["node.gpus"] || [];
  useEffect(() => {
    map.current = new GpuMap(below.current, above.current);
    Object.assign(box.current, { frames: map.current.frames });
    const watch = new ResizeObserver(() => box.current && measure({ width: box.current.clientWidth, height: box.current.clientHeight }));
    watch.observe(box.current);
    const change = () => setNight(dark.matches);
    dark.addEventListener("change", change);
    return () => { watch.disconnect(); dark.removeEventListener("change", change); };
  }, []);
  const fit = useMemo(() => space.width ? fitting(sections, gpus, space.width, space.height) : 1, [sections, space]);
  const cell = drawn.current = size || fit;
  const plan = useMemo(() => layout(sections, gpus, space.width || 600, cell), [sections, space, cell]);
  const paint = useMemo(() => painter(mode, columns, now()), [mode, tick.value, night]);
  useEffect(() => { if (map.current && space.width) map.current.resize(space.width, space.height); }, [space, night]);
  useEffect(() => {
    if (!map.current || !space.width) return;
    map.current.found = found;
    map.current.chosen = chosen;
    map.current.draw(plan, columns, paint.of);
    map.current.annotate(plan, columns);
  }, [plan, paint, found, chosen, tick.value, space]);
  const redraw = () => { if (map.current && space.width) { map.current.draw(plan, columns, paint.of); map.current.annotate(plan, columns); } };
  const show = (/** @type {number} */ node) => {
    const place = plan.node.get(node);
    if (place && (place.y < box.current.scrollTop || place.y + place.h > box.current.scrollTop + space.height)) box.current.scrollTop = place.y - space.height / 2;
  };
  useEffect(() => { if (chosen >= 0) show(chosen); }, [plan]);
  const at = (/** @type {MouseEvent} */ event) => { const edge = above.current.getBoundingClientRect(); return map.current?.hit(plan, event.clientX - edge.left, event.clientY - edge.top, gpus) || { node: -1, gpu: -1 }; };
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key.startsWith("Arrow")) { const next = GpuMap.beside(plan, chosen, key); choose(next); show(next); }
    else if (key === "Home" || key === "End") { const next = plan.order[key === "Home" ? 0 : plan.order.length - 1]; choose(next); show(next); }
    else if (key === "+" || key === "=") setSize(Math.min(LARGEST_CELL, cell + Math.max(1, cell >> 2)));
    else if (key === "-") setSize(Math.max(1, cell - Math.max(1, cell >> 2)));
    else if (key === "0") setSize(0);
    else if (key === "Escape") choose(-1);
    else if (key === "Enter" && chosen >= 0) { const most = [...summary(chosen).jobs].filter(([job]) => job >= 0).sort((a, b) => b[1] - a[1])[0]; if (most) location.hash = `#/jobs/${columns["job.key"][most[0]]}`; }
    else return;
    event.preventDefault();
  };
  return html`<div class="map" ref=${box} tabindex="0" role="application" aria-roledescription="map of GPUs" aria-label=${`Map of ${plan.order.length} nodes. Arrow keys move between nodes, Enter opens a job; the same stands in the table below.`} aria-describedby="map-said"
      onKeyDown=${press} onScroll=${() => { if (map.current) { map.current.top = box.current.scrollTop; redraw(); } }}
      onMouseMove=${(/** @type {MouseEvent} */ event) => { const hit = at(event); if (map.current && map.current.pointed !== hit.node) { map.current.pointed = hit.node; map.current.annotate(plan, columns); } point(hit.node < 0 ? null : { ...hit, x: event.clientX, y: event.clientY }); }}
      onMouseLeave=${() => { point(null); if (map.current) { map.current.pointed = -1; map.current.annotate(plan, columns); } }}
      onClick=${(/** @type {MouseEvent} */ event) => choose(at(event).node)}>
    <div class="stay"><canvas ref=${below} aria-hidden="true"></canvas><canvas ref=${above} aria-hidden="true"></canvas></div><div class="space" style=${{ height: `${Math.max(0, plan.height)}px` }}></div></div>
    <div class="legend">${paint.legend.map(([name, colour]) => html`<span key=${name}><i style=${{ background: colour }} aria-hidden="true"></i>${name}</span>`)}</div>
    <p id="map-said" class="unseen" aria-live="polite">${chosen >= 0 && columns["node.name"]?.[chosen] ? (() => { const node = summary(chosen); return `${node.name}, ${node.place}, ${node.free} of ${node.count} ${node.type} free. ${[...node.jobs].map(([job, count]) => `${count} of ${job >= 0 ? columns["job.key"][job] : WORDS[job]}`).join(", ")}`; })() : "No node is chosen."}</p>
    ${tip && columns["node.name"]?.[tip.node] && html`<div class="tip" style=${{ left: `${Math.min(tip.x + 14, innerWidth - 330)}px`, top: `${tip.y + 16}px` }}><strong>${columns["node.name"][tip.node]}</strong>${tip.gpu >= 0 ? html` · GPU ${tip.gpu}<br />${holder(columns["node.at"][tip.node] + tip.gpu)}<br />use ${figure(columns["gpu.use"][columns["node.at"][tip.node] + tip.gpu], "%")}, ${figure(columns["gpu.temp"][columns["node.at"][tip.node] + tip.gpu], "°C", -299)}, ${STATES[columns["gpu.state"][columns["node.at"][tip.node] + tip.gpu]]}` : html`<br />${summary(tip.node).free} of ${columns["node.gpus"][tip.node]} free`}</div>`}`;
}

/** @param {{query: URLSearchParams}} props */
export default function Cluster({ query }) {
  tick.value;
  const asked = query.get("node"), drawn = useRef(6); // pixels of a GPU as it is drawn now
  const [mode, setMode] = useState(query.get("colour") || "job"), [text, type] = useState(query.get("q") || ""), [size, setSize] = useState(0), [chosen, choose] = useState(-1), [table, open] = useState(false);
  useEffect(() => { if (asked) choose((columns["node.name"] || []).indexOf(asked)); }, [asked, (columns["node.name"] || []).length]);
  const names = columns["node.name"], racks = columns["node.rack"], types = columns["node.type"], many = columns["node.gpus"];
  const sections = useMemo(() => names ? grouped(columns) : [], [names, racks, types, many, names?.length, columns["node.at"]]);
  const found = useMemo(() => find(text), [text, text ? tick.value : 0]);
  if (!names) return html`<h1>Cluster</h1><p class="dim working" role="status">Waiting for the first look …</p>`;
  if (!names.some(Boolean)) return html`<h1>Cluster</h1><div class="notice">${whoami.value?.can?.nodes === false ? "You may not see nodes." : "No node with GPUs is seen. trimtab doctor says whether one should be."}</div>`;
  const shown = table ? names.flatMap((name, at) => (name && (!found || found.has(at)) ? [summary(at)] : [])) : [];
  return html`<h1>Cluster</h1>
    <div class="tools"><label>Colour <select value=${mode} onChange=${(/** @type {any} */ event) => setMode(event.target.value)}>${MODES.map(([key, name]) => html`<option key=${key} value=${key}>${name}</option>`)}</select></label>
      <input type="search" aria-label="Show only what is called like" placeholder="Node, rack, type, job or queue" value=${text} onInput=${(/** @type {any} */ event) => type(event.target.value)} />
      <span class="chips"><button aria-label="Smaller" onClick=${() => setSize(Math.max(1, drawn.current - Math.max(1, drawn.current >> 2)))}>−</button><button onClick=${() => setSize(0)} aria-pressed=${size === 0}>All at once</button><button aria-label="Larger" onClick=${() => setSize(Math.min(LARGEST_CELL, drawn.current + Math.max(1, drawn.current >> 2)))}>+</button></span>
      <span class="dim small" role="status">${found ? `${found.size} of ${names.filter(Boolean).length} nodes` : `${names.filter(Boolean).length.toLocaleString("en-US")} nodes, ${(columns["gpu.job"] || []).length.toLocaleString("en-US")} GPUs`}</span></div>
    <div class="mapbox"><div class="mapwide"><${Canvas} sections=${sections} mode=${mode} found=${found} chosen=${chosen} choose=${choose} size=${size} setSize=${setSize} drawn=${drawn} /></div><${Chosen} at=${chosen} /></div>
    <details open=${table} onToggle=${(/** @type {any} */ event) => open(event.target.open)}><summary>The same as a table</summary>${table && html`<${Table} caption="Nodes" rows=${shown} keyOf=${(/** @type {any} */ row) => row.name} first=${0} columns=${[
      ["Node", (/** @type {any} */ row) => html`<button class="plain name" onClick=${() => choose(row.at)}>${row.name}</button>`, (/** @type {any} */ row) => row.name], ["Type", (/** @type {any} */ row) => row.type, (/** @type {any} */ row) => row.type], ["Place", (/** @type {any} */ row) => row.place, (/** @type {any} */ row) => row.place],
      ["Free", (/** @type {any} */ row) => `${row.free}/${row.count}`, (/** @type {any} */ row) => row.free, "right"], ["Use", (/** @type {any} */ row) => figure(row.use, "%"), (/** @type {any} */ row) => row.use, "right"], ["Unwell", (/** @type {any} */ row) => row.bad || "", (/** @type {any} */ row) => row.bad, "right"],
      ["Jobs", (/** @type {any} */ row) => [...row.jobs].map(([job, count]) => html`<span key=${job}>${count}× ${job >= 0 ? html`<${JobLink} name=${columns["job.key"][job]} />` : WORDS[job]} </span>`)], ["Takes no pods", (/** @type {any} */ row) => row.why, (/** @type {any} */ row) => row.why, "wrap"],
    ]} />`}</details>`;
}
