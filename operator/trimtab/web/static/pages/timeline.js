// @ts-check
// Timeline: what ran, what runs and until when, what is expected to start; the same as a table below.
import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { hue } from "../colours.js";
import { JobLink, Table, Waiting, html, useAnswer } from "../parts.js";
import { columns } from "../store.js";
import { clock, duration } from "../format.js";

const HOUR = 3600;
const RANGES = /** @type {[string, string, number, number][]} */ ([
  ["6h", "6 hours", 2 * HOUR, 6 * HOUR], ["1d", "a day", 6 * HOUR, 24 * HOUR], ["3d", "3 days", 24 * HOUR, 72 * HOUR], ["7d", "a week", 48 * HOUR, 168 * HOUR],
]);
const WHAT = /** @type {Record<string, string>} */ ({ past: "ran", running: "runs", expected: "expected", reserved: "expected, nodes are kept" });
const TRACK = 20, BAR = 14, HEAD = 22, AXIS = 24, LEAST = 640;

/** Distances of the axis' lines: at most twelve fit. @param {number} seconds */
const spacing = (seconds) => [0.5, 1, 3, 6, 12, 24, 48].map((each) => each * HOUR).find((each) => seconds / each <= 12) || 96 * HOUR;

/** Puts bars that overlap, whiskers and all, onto tracks of their own. @param {any[]} spans */
function tracked(spans) {
  const ends = /** @type {number[]} */ ([]);
  return [...spans].sort((a, b) => a.from - b.from).map((span) => {
    let track = ends.findIndex((end) => end <= span.from);
    if (track < 0) track = ends.length;
    ends[track] = span.to;
    return { ...span, track };
  });
}

/** Lanes below one another. @param {any} data */
function arranged(data) {
  let top = AXIS;
  return data.lanes.map((/** @type {any} */ lane, /** @type {number} */ at) => {
    const spans = tracked(data.spans.filter((/** @type {any} */ span) => span.lane === at).map((/** @type {any} */ span) => ({
      ...span, from: Math.min(span.start, span.startLow ?? span.start), to: Math.max(span.end, span.endHigh ?? span.end),
    })));
    const tracks = spans.reduce((most, span) => Math.max(most, span.track + 1), 0), height = HEAD + TRACK * Math.max(1, tracks);
    const placed = { ...lane, spans, top, height };
    top += height + 6;
    return placed;
  });
}

/** What a bar says when it is pointed at. @param {any} span @param {number} at */
function told(span, at) {
  const between = span.kind === "running" && span.endLow !== null ? ` (${clock(span.endLow, at)} to ${clock(span.endHigh, at)})` : "";
  const begins = span.startLow !== null ? ` (${clock(span.startLow, at)} to ${clock(span.startHigh, at)})` : "";
  return `${span.job || "somebody else's job"}: ${WHAT[span.kind]}, ${span.gpus}×${span.gpuType}, ${clock(span.start, at)}${begins} to ${clock(span.end, at)}${between}${span.text ? `; ${span.text}` : ""}`;
}

/** @param {{span: any, top: number, x: (time: number) => number, at: number, colour: string}} props */
function Span({ span, top, x, at, colour }) {
  const now = x(at);
  const left = x(span.start), width = Math.max(3, x(span.end) - left), y = top + HEAD + span.track * TRACK, middle = y + BAR / 2;
  const [low, high] = span.kind === "running" ? [span.endLow, span.endHigh] : [span.startLow, span.startHigh];
  const crossed = now > left && left + width - now > 60, from = crossed ? now : left; // a name stands beside the line of now
  const room = Math.floor((left + width - from - 8) / 6.2), name = span.job.split("/").pop() || "";
  const body = html`<title>${told(span, at)}</title><rect class="body" x=${left} y=${y} width=${width} height=${BAR} rx="3" fill=${colour} stroke=${colour} />
    ${span.kind === "reserved" && html`<rect x=${left} y=${y} width=${width} height=${BAR} rx="3" fill="url(#kept)" />`}
    ${low !== null && high > low && html`<path class="whisker" d=${`M${x(low)} ${middle}H${x(high)}M${x(low)} ${middle - 4}v8M${x(high)} ${middle - 4}v8`} />`}
    ${room > 4 && html`<text class=${`label ${span.kind}`} x=${from + 4} y=${y + BAR - 3.5}>${name.length > room ? `${name.slice(0, room - 1)}…` : name}</text>`}`;
  return html`<g class=${span.kind === "reserved" ? "expected reserved" : span.kind}>${span.job ? html`<a href=${`#/jobs/${span.job}`} aria-label=${told(span, at)}>${body}</a>` : body}</g>`;
}

/** @param {{data: any}} props */
function Chart({ data }) {
  const box = useRef(/** @type {any} */ (null)), [wide, fit] = useState(LEAST);
  useEffect(() => {
    const watch = new ResizeObserver(([seen]) => fit(Math.max(LEAST, Math.floor(seen.contentRect.width))));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const lanes = useMemo(() => arranged(data), [data]), last = lanes[lanes.length - 1], height = last ? last.top + last.height : AXIS;
  const x = (/** @type {number} */ time) => Math.max(0, Math.min(wide, ((time - data.from) / (data.to - data.from)) * wide));
  const places = new Map((columns["job.key"] || []).map((key, at) => [key, at]));
  const apart = spacing(data.to - data.from), lines = [];
  const offset = new Date(data.time * 1000).getTimezoneOffset() * 60;
  for (let time = Math.ceil((data.from - offset) / apart) * apart + offset; time < data.to; time += apart) lines.push(time);
  return html`<div class="time" ref=${box} tabindex="0" role="region" aria-label="Timeline; the same stands in the table below"><svg width=${wide} height=${height} role="group" aria-label="Jobs over time">
    <defs><pattern id="kept" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="whisker" x1="0" y1="0" x2="0" y2="6" /></pattern></defs>
    ${lanes.map((/** @type {any} */ lane) => html`<g key=${lane.name}><rect class="lane" x="0" y=${lane.top} width=${wide} height=${lane.height} /></g>`)}
    ${lines.map((time) => html`<g key=${time}><line class="grid" x1=${x(time)} x2=${x(time)} y1=${AXIS} y2=${height} />${x(time) < wide - 76 && (x(time) + 76 < x(data.time) || x(time) > x(data.time) + 28) && html`<text class="axis" x=${x(time) + 3} y="15">${clock(time, data.time)}</text>`}</g>`)}
    ${lanes.map((/** @type {any} */ lane) => html`<g key=${lane.name}><text x="6" y=${lane.top + 15}>${lane.name || "no queue"}${lane.gpus ? ` · ${lane.gpus} GPUs` : ""}${lane.spans.length ? "" : " · nothing"}</text>
      ${lane.spans.map((/** @type {any} */ span) => html`<${Span} key=${`${span.job} ${span.start} ${span.track}`} span=${span} top=${lane.top} x=${x} at=${data.time} colour=${span.job ? hue(places.get(span.job) ?? 0) : "#8b96a3"} />`)}</g>`)}
    ${data.marks.map((/** @type {any} */ mark, /** @type {number} */ at) => html`<path key=${at} class="mark" d=${`M${x(mark.time)} ${AXIS}l4 -7h-8z`}><title>${`${clock(mark.time, data.time)} ${mark.job}: ${mark.text}`}</title></path>`)}
    <line class="now" x1=${x(data.time)} x2=${x(data.time)} y1=${AXIS - 4} y2=${height} /><text class="nowtext" x=${x(data.time) + 6} y="15">now</text></svg></div>`;
}

/** @param {{query: URLSearchParams}} props */
export default function Timeline({ query }) {
  const [by, lay] = useState(query.get("by") || "type"), [range, choose] = useState("1d"), seen = useRef(0);
  const [, , back, ahead] = RANGES.find(([name]) => name === range) || RANGES[1];
  // A day is what the server tells unasked; others are laid around its clock, not this machine's, in steps of five minutes.
  const start = Math.floor(seen.current / 300) * 300 - back, between = range === "1d" || !seen.current ? "" : `&from=${start}&to=${start + back + ahead}`;
  const { data, error, busy } = useAnswer(`timeline?by=${by}${between}`, "timeline");
  if (data) seen.current = data.time;
  return html`<h1>Timeline</h1><div class="tools"><label>Lanes <select value=${by} onChange=${(/** @type {any} */ event) => lay(event.target.value)}><option value="type">GPU types</option><option value="queue">Queues</option><option value="node">Nodes</option></select></label>
      <div class="chips" role="group" aria-label="How far ahead">${RANGES.map(([name, words]) => html`<button key=${name} aria-pressed=${range === name} onClick=${() => choose(name)}>${words}</button>`)}</div></div>
    <${Waiting} error=${error} busy=${busy} data=${data} what="Reading the timeline" />
    ${data && html`<${Chart} data=${data} /><p class="dim small">Solid: holds GPUs, to its predicted end. Dashed: expected to start; hatched: nodes are kept for it. Whiskers: four times of five the end, or the start, lies between. Triangles: stops and moves.</p>
    <details><summary>The same as a table</summary><${Table} caption="Timeline" rows=${data.spans} columns=${[
      ["Job", (/** @type {any} */ span) => html`<${JobLink} name=${span.job} />`, (/** @type {any} */ span) => span.job],
      ["Lane", (/** @type {any} */ span) => data.lanes[span.lane].name, (/** @type {any} */ span) => span.lane],
      ["What", (/** @type {any} */ span) => WHAT[span.kind], (/** @type {any} */ span) => span.kind],
      ["GPUs", (/** @type {any} */ span) => `${span.gpus}×${span.gpuType}`, (/** @type {any} */ span) => span.gpus],
      ["From", (/** @type {any} */ span) => clock(span.start, data.time), (/** @type {any} */ span) => span.start],
      ["To", (/** @type {any} */ span) => clock(span.end, data.time), (/** @type {any} */ span) => span.end],
      ["For", (/** @type {any} */ span) => duration(Math.max(0, span.end - span.start)), (/** @type {any} */ span) => span.end - span.start, "right"],
    ]} /></details>`}`;
}
