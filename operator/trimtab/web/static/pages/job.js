// @ts-check
// One job: what `trimtab explain` knows of it.
import { Panel, Table, Told, Waiting, html, useAnswer } from "../parts.js";
import { amount, bytes, plan, rate, step } from "../format.js";

/** Seconds or bytes by what they are for. @param {{title: string, of: Record<string, number>, say: (value: number) => string}} props */
function Parts({ title, of, say }) {
  const most = Math.max(...Object.values(of), 1e-12);
  return html`<h3>${title}</h3><div class="bars">${Object.entries(of).filter(([, value]) => value > 0).flatMap(([name, value]) => [html`<span key=${name}>${name}</span>`,
    html`<span class="track" key=${`${name} bar`}><i style=${{ width: `${(100 * value) / most}%` }}></i></span>`, html`<span class="value" key=${`${name} value`}>${say(value)}</span>`])}</div>`;
}

/** The best of each GPU type, and why the others lost. @param {{choices: any[], currency: string}} props */
export function Choices({ choices, currency }) {
  const chosen = choices.find((each) => each.chosen && each.breakdown);
  return html`<${Panel} title="Alternatives"><${Table} caption="GPU types for this job" rows=${choices} columns=${[
    ["GPUs", (/** @type {any} */ each) => html`${each.chosen ? html`<strong>→ ${each.gpus}×${each.gpu_type}</strong>` : `${each.gpus ? `${each.gpus}×` : ""}${each.gpu_type}`}`],
    ["Plan", (/** @type {any} */ each) => each.plan ? html`<code>${plan(each.plan)}</code>` : ""],
    ["Step (80 %)", (/** @type {any} */ each) => each.prediction ? html`${step(each.prediction.step_seconds)} ${each.breakdown && html`<span class="dim small">${step(each.breakdown.low)} to ${step(each.breakdown.high)}</span>`}` : "", undefined, "right"],
    ["Tokens/s", (/** @type {any} */ each) => each.prediction ? rate(each.prediction.tokens_per_second) : "", undefined, "right"],
    ["Memory", (/** @type {any} */ each) => each.prediction && each.breakdown ? `${bytes(each.prediction.memory_bytes)} of ${bytes(each.breakdown.card_bytes)}` : "", undefined, "right"],
    [`10⁹ tokens`, (/** @type {any} */ each) => each.breakdown ? `${amount(each.breakdown.kwh_per_billion)} kWh${each.breakdown.cost_per_billion == null ? "" : `, ${amount(each.breakdown.cost_per_billion)} ${currency}`}` : "", undefined, "right"],
    ["Why not", (/** @type {any} */ each) => each.why_not, undefined, "wrap"],
  ]} />${chosen && html`<div class="two"><div><${Parts} title="Step time" of=${chosen.breakdown.step} say=${step} /></div><div><${Parts} title="Memory of the fullest GPU" of=${chosen.breakdown.memory} say=${bytes} /></div></div>`}<//>`;
}

/** @param {{parts: string[]}} props */
export default function Job({ parts }) {
  const path = parts.slice(1).map(encodeURIComponent).join("/");
  const { data, error, busy, ask } = useAnswer(`jobs/${path}`, "jobs", false);
  return html`<h1>${parts.slice(1).join("/")}</h1><div class="tools"><button onClick=${ask} disabled=${busy}>${busy ? "Working it out …" : "Work it out again"}</button></div>
    <${Waiting} error=${error} busy=${busy} data=${data} what="Working out where it stands" />
    ${data && html`<${Panel} title="Where it stands, and why"><${Told} rows=${data.told} /><//>${data.choices?.length > 0 && html`<${Choices} choices=${data.choices} currency=${data.currency} />`}`}`;
}
