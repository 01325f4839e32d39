// @ts-check
// Queues: what each may have and holds, and what it was given so far.
import { Bar, Panel, Table, Waiting, html, useAnswer } from "../parts.js";
import { amount } from "../format.js";

export default function Queues() {
  const { data, error, busy } = useAnswer("queues", "queues");
  if (!data) return html`<h1>Queues</h1><${Waiting} error=${error} busy=${busy} data=${data} what="Reading the queues" />`;
  const cell = (/** @type {string} */ key) => (/** @type {any} */ row) => row[key] ?? html`<span class="dim">none</span>`;
  return html`<h1>Queues</h1><${Waiting} error=${error} what="" /><div class="two">${data.items.map((/** @type {any} */ queue) => html`<${Panel} key=${queue.name} title=${queue.name}>
    <p class="dim">${queue.running} run, ${queue.pending} wait; weight ${queue.weight}</p>${(queue.quotas || []).map((/** @type {any} */ quota) => html`<div class="quota" key=${quota.gpuType}><div class="row"><strong>${quota.gpuType}</strong><span class="dim">holds ${quota.held}, of these ${quota.borrowed} borrowed; guaranteed ${quota.guaranteed}; limit ${quota.limit ?? "none"}</span></div>
    <${Bar} label=${`${queue.name}, ${quota.gpuType}: ${quota.held} held, ${quota.borrowed} borrowed, ${quota.guaranteed} guaranteed`} parts=${[{ kind: "held", share: quota.held - quota.borrowed, title: "held" }, { kind: "borrowed", share: quota.borrowed, title: "borrowed" }, { kind: "free", share: Math.max(0, quota.guaranteed - quota.held), title: "guaranteed, not held" }]} /></div>`)}
    ${(queue.problems || []).map((/** @type {any} */ said) => html`<p class="warned" key=${String(said)}>${typeof said === "string" ? said : JSON.stringify(said)}</p>`)}<//>`)}</div>
    ${data.items.length === 0 && html`<p class="dim">There are no Queues: jobs share the cluster by namespace.</p>`}
    <${Panel} title="GPU-hours and cost"><${Table} caption="GPU-hours and cost" rows=${data.use} first=${4} down columns=${[
    ["Queue", cell("queue"), (/** @type {any} */ row) => row.queue], ["Namespace", cell("namespace"), (/** @type {any} */ row) => row.namespace], ["GPU type", cell("gpuType"), (/** @type {any} */ row) => row.gpuType], ["GPUs now", cell("gpus"), (/** @type {any} */ row) => row.gpus, "right"],
    ["GPU-hours", (/** @type {any} */ row) => amount(row.gpuSeconds / 3600), (/** @type {any} */ row) => row.gpuSeconds, "right"], ["Cost", (/** @type {any} */ row) => row.cost == null ? "–" : `${amount(row.cost)} ${data.currency}`, (/** @type {any} */ row) => row.cost || 0, "right"]]} /><p class="dim small">Of jobs that still exist. Prometheus has deleted ones, too: trimtab_gpu_seconds_total.</p><//>`;
}
