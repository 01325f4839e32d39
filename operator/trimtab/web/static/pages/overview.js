// @ts-check
// Overview: what the cluster has, who waits and why, and what was decided last.
import { Bar, JobLink, Panel, Waiting, html, useAnswer } from "../parts.js";
import { clock, duration, minutes, shadowed } from "../format.js";
import { now } from "../store.js";

const KINDS = /** @type {[string, string][]} */ ([["held", "held by jobs"], ["kept", "kept for the first in line"], ["foreign", "foreign"], ["unavailable", "unavailable"], ["free", "free"]]);

/** @param {{of: any}} props */
function Gpus({ of }) {
  const parts = KINDS.map(([kind, title]) => ({ kind, share: of[kind] || 0, title: `${of[kind] || 0} ${title}` }));
  return html`<div class="gputype"><div class="row"><strong title=${of.gpuType}>${of.gpuType}</strong><span class="dim">${of.nodes} node${of.nodes === 1 ? "" : "s"}</span><span class="grow"></span><span class="big">${of.free}</span><span class="dim">of ${of.gpus} free</span></div>
    <${Bar} parts=${parts} label=${`${of.gpuType}: ${parts.filter((part) => part.share).map((part) => part.title).join(", ")}`} />
    <div class="row small dim">${parts.filter((part) => part.share > 0).map((part) => html`<span key=${part.kind}><i class=${`dot k-${part.kind}`} aria-hidden="true"></i>${part.title}</span>`)}</div></div>`;
}

/** @param {{start: any, at: number}} props */
const Start = ({ start, at }) => start
  ? html`<span class="start"><strong>in ~${minutes(start.expected - at)}</strong> <span class="dim small">80 %: ${minutes(start.low - at)} to ${minutes(start.high - at)}</span></span>`
  : html`<span class="dim">not in sight</span>`;

export default function Overview() {
  const { data, error, busy } = useAnswer("overview", "overview");
  const at = now();
  if (!data) return html`<h1>Overview</h1><${Waiting} error=${error} busy=${busy} data=${data} what="Looking at the cluster" />`;
  const gpus = data.gpus.reduce((/** @type {any} */ sum, /** @type {any} */ each) => ({ all: sum.all + each.gpus, held: sum.held + each.held, free: sum.free + each.free }), { all: 0, held: 0, free: 0 });
  const { deciding, shadow } = data;
  return html`<h1>Overview</h1>
    ${error && html`<${Waiting} error=${error} what="" />`}
    <ul class="figures">
      <li><b>${gpus.all.toLocaleString("en-US")}</b> GPUs</li><li><b>${gpus.all ? Math.round((100 * gpus.held) / gpus.all) : 0} %</b> held by jobs</li><li><b>${gpus.free.toLocaleString("en-US")}</b> free</li>
      <li><b>${data.running}</b> <a href="#/jobs?phase=1">jobs hold GPUs</a></li><li><b>${data.waiting}</b> <a href="#/jobs?phase=0">wait</a></li>
      <li><b class="word">${deciding.policy}</b> decides${deciding.chosen && deciding.chosen !== deciding.policy ? html` <span class="warned">instead of ${deciding.chosen}</span>` : ""}</li></ul>
    <div class="columns">
      <div><${Panel} title="GPUs" more=${html`<a href="#/cluster">Map</a>`}>${data.gpus.length ? data.gpus.map((/** @type {any} */ each) => html`<${Gpus} key=${each.gpuType} of=${each} />`) : html`<p class="dim">No node with GPUs is seen, or you may not see nodes.</p>`}<//>
        <${Panel} title="Who decides" more=${html`<a href="#/policies">Policies</a>`}><dl class="told"><div><dt>Deciding</dt><dd>${deciding.policy}</dd></div><div><dt>Fallback</dt><dd>${deciding.fallback || "none"}</dd></div>
          ${shadow?.policy && html`<div><dt>Shadow</dt><dd>${shadow.policy}: ${shadowed(shadow)}</dd></div>`}</dl><//></div>
      <div><${Panel} title="In line" more=${html`<a href="#/jobs?phase=0">All that wait</a>`}>
        ${data.line.length === 0 ? html`<p class="dim">Nobody waits.</p>` : html`<ol class="line">${data.line.map((/** @type {any} */ each) => html`<li key=${each.job}><span class="place" aria-label=${`place ${each.place}`}>${each.place}</span><div><div class="row"><${JobLink} name=${each.job} /><span class="grow"></span><${Start} start=${each.start} at=${at} /></div>
          <p><span class="reason">${each.state}</span> ${each.message}</p>${each.alternatives?.length ? html`<p class="help">What helps: ${each.alternatives[0]}</p>` : ""}</div></li>`)}</ol>`}<//></div>
      <div><${Panel} title="Last decisions">
        ${data.decisions.length === 0 ? html`<p class="dim">None yet.</p>` : html`<ol class="events">${data.decisions.slice(0, 14).map((/** @type {any} */ each) => html`<li key=${each.job + each.time}><time>${clock(each.time, at)}</time><div><${JobLink} name=${each.job} /> <span class="dim small">${each.policy}</span><p>${each.text}</p></div></li>`)}</ol>`}<//></div>
    </div>`;
}
