// @ts-check
// Jobs: all that this user may see, from the stream's columns.
import { useState } from "../vendor/hooks.js";
import { JobLink, State, Table, html } from "../parts.js";
import { columns, now, tick } from "../store.js";
import { clock, duration, minutes, short } from "../format.js";

const PHASES = ["Waiting", "Holding GPUs", "Over", "Suspended"];

/** One object a job of the columns. */
export function jobs() {
  tick.value; // read, so that the page is drawn again with each change
  const keys = columns["job.key"] || [];
  const get = (/** @type {string} */ name, /** @type {number} */ at) => columns[`job.${name}`]?.[at];
  return keys.flatMap((key, at) => key ? [{
    key, at, state: get("state", at), queue: get("queue", at), priority: get("priority", at), type: get("type", at), gpus: get("gpus", at), plan: get("plan", at),
    phase: get("phase", at), progress: get("progress", at), created: get("created", at), end: get("end", at), low: get("low", at), start: get("start", at), high: get("high", at), place: get("place", at),
  }] : []);
}

/** @param {{job: any, at: number}} props */
function When({ job, at }) {
  if (job.phase === 0) return job.start ? html`starts in ~${minutes(job.start - at)} <span class="dim small below">${minutes(job.low - at)} to ${minutes(job.high - at)}</span>` : html`<span class="dim">start not in sight</span>`;
  if (job.phase === 1) return job.end ? html`ends in ~${minutes(job.end - at)}` : html`<span class="dim">end not known</span>`;
  if (job.phase === 2) return job.end ? html`<span class="dim">ended ${clock(job.end, at)}</span>` : "";
  return html`<span class="dim">suspended</span>`;
}

/** @param {{query: URLSearchParams}} props */
export default function Jobs({ query }) {
  const asked = query.get("phase");
  const [text, type] = useState(query.get("q") || ""), [phase, choose] = useState(asked === null ? -1 : Number(asked));
  const all = jobs(), at = now();
  const wanted = text.toLowerCase();
  const shown = all.filter((job) => (phase < 0 || job.phase === phase) && (!wanted || `${job.key} ${job.queue} ${job.state} ${job.type}`.toLowerCase().includes(wanted)));
  const order = [1, 0, 3, 2];
  shown.sort((a, b) => order.indexOf(a.phase) - order.indexOf(b.phase) || (a.place || 1e9) - (b.place || 1e9) || b.created - a.created);
  return html`<h1>Jobs</h1>
    <div class="tools" role="group" aria-label="Which jobs"><input type="search" aria-label="Filter by name, queue, state or GPU type" placeholder="Filter" value=${text} onInput=${(/** @type {any} */ event) => type(event.target.value)} />
      <div class="chips">${[-1, 1, 0, 3, 2].map((each) => html`<button key=${each} aria-pressed=${phase === each} onClick=${() => choose(each)}>${each < 0 ? "All" : PHASES[each]} <span class="count">${each < 0 ? all.length : all.filter((job) => job.phase === each).length}</span></button>`)}</div></div>
    <${Table} caption="Jobs" rows=${shown} keyOf=${(/** @type {any} */ job) => job.key} empty=${all.length ? "No job is like that." : "There are no jobs, or you may see none."} columns=${[
      ["Job", (/** @type {any} */ job) => html`<${JobLink} name=${job.key} />`, (/** @type {any} */ job) => job.key],
      ["State", (/** @type {any} */ job) => html`<${State} state=${job.state} phase=${job.phase} />`, (/** @type {any} */ job) => job.state],
      ["When", (/** @type {any} */ job) => html`<${When} job=${job} at=${at} />`, (/** @type {any} */ job) => job.phase === 0 ? job.start || 1e12 : job.end || 1e12],
      ["Line", (/** @type {any} */ job) => job.place || "", (/** @type {any} */ job) => job.place || 1e9, "right"],
      ["GPUs", (/** @type {any} */ job) => job.gpus ? html`<span title=${job.type}>${job.gpus}<span class="dim">×${short(job.type)}</span></span>` : "", (/** @type {any} */ job) => job.gpus],
      ["Progress", (/** @type {any} */ job) => job.progress < 0 ? "" : html`<span class="progress" role="img" aria-label=${`${job.progress / 10} percent`}><i style=${{ width: `${job.progress / 10}%` }}></i></span><span class="small dim"> ${Math.round(job.progress / 10)} %</span>`, (/** @type {any} */ job) => job.progress],
      ["Queue", (/** @type {any} */ job) => job.queue || html`<span class="dim">none</span>`, (/** @type {any} */ job) => job.queue],
      ["Priority", (/** @type {any} */ job) => job.priority, (/** @type {any} */ job) => job.priority, "right"],
      ["Age", (/** @type {any} */ job) => duration(Math.max(0, at - job.created)), (/** @type {any} */ job) => -job.created, "right"],
      ["Plan", (/** @type {any} */ job) => job.plan ? html`<code>${job.plan}</code>` : "", null, "broken"],
    ]} />`;
}
