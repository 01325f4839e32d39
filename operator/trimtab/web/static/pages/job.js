// @ts-check
// One job: what `trimtab explain` knows of it, and what to ask about it.
import { linkOf } from "../change.js";
import { Panel, Table, Told, Waiting, html, useAnswer } from "../parts.js";
import { whoami } from "../store.js";
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
    ["Step (80 %)", (/** @type {any} */ each) => each.prediction ? html`${step(each.prediction.step_seconds)}${each.breakdown && html`<br /><span class="dim small">${step(each.breakdown.low)} to ${step(each.breakdown.high)}</span>`}` : "", undefined, "right"],
    ["Tokens/s", (/** @type {any} */ each) => each.prediction ? rate(each.prediction.tokens_per_second) : "", undefined, "right"],
    ["Memory", (/** @type {any} */ each) => each.prediction && each.breakdown ? `${bytes(each.prediction.memory_bytes)} of ${bytes(each.breakdown.card_bytes)}` : "", undefined, "right"],
    [`10⁹ tokens`, (/** @type {any} */ each) => each.breakdown ? `${amount(each.breakdown.kwh_per_billion)} kWh${each.breakdown.cost_per_billion == null ? "" : `, ${amount(each.breakdown.cost_per_billion)} ${currency}`}` : "", undefined, "right"],
    ["Why not", (/** @type {any} */ each) => each.why_not, undefined, "wrap"],
  ]} />${chosen && html`<div class="two"><div><${Parts} title="Step time" of=${chosen.breakdown.step} say=${step} /></div><div><${Parts} title="Memory of the fullest GPU" of=${chosen.breakdown.memory} say=${bytes} /></div></div>`}<//>`;
}

/** The predicted step time with its 80 % interval as a band, and what the running gang reports: one median, which is all
 * that a status keeps. @param {{plan: any, observed: any}} props */
function Steps({ plan, observed }) {
  const { stepMilliseconds: predicted, stepMillisecondsLow: low = predicted, stepMillisecondsHigh: high = predicted } = plan.predicted;
  const seen = observed?.epoch === plan.epoch ? observed.stepMilliseconds : undefined;
  const whole = 1.15 * Math.max(high, seen || 0), at = (/** @type {number} */ value) => `${(100 * value) / whole}%`, say = (/** @type {number} */ value) => step(value / 1000);
  const verdict = !seen ? "Nothing is observed of this plan yet." : seen < low ? "It is faster than four of five such runs were predicted to be." : seen > high ? "It is slower than four of five such runs were predicted to be." : "It is as predicted: four of five such runs lie in the band.";
  return html`<${Panel} title="Step time, predicted and observed"><div class="band" role="img" aria-label=${`Predicted ${say(predicted)} a step, four of five such runs take ${say(low)} to ${say(high)}; ${seen ? `observed median ${say(seen)}` : "nothing observed"}`}>
      <i class="range" style=${{ left: at(low), width: at(high - low) }}></i><i class="guess" style=${{ left: at(predicted) }}></i>${seen && html`<i class="seen" style=${{ left: at(seen) }}></i>`}</div>
    <div class="band-ends dim small" aria-hidden="true"><span>0</span><span>${say(whole)}</span></div>
    <p class="legend"><span><i class="range" aria-hidden="true"></i>four of five such runs: ${say(low)} to ${say(high)}</span><span><i class="guess" aria-hidden="true"></i>predicted ${say(predicted)}</span>${seen && html`<span><i class="seen" aria-hidden="true"></i>observed median ${say(seen)}</span>`}</p><p>${verdict}</p><//>`;
}

/** Changes that would help, each a link to What if. @param {{name: string, helps: any[]}} props */
const Helps = ({ name, helps }) => html`<${Panel} title="Ask what if"><p class="dim">${helps.length ? "It would start, or be the first in line, with one of these. What if says what becomes of everybody then." : "What if says what becomes of everybody when it is changed."}</p>
  <p class="help-buttons">${helps.map((each) => html`<a key=${each.label} href=${linkOf(each.change)}>with ${each.label}</a>`)}<a href=${`#/whatif?job=${encodeURIComponent(name)}`}>${helps.length ? "something else" : "change it"} …</a></p><//>`;

/** @param {{parts: string[]}} props */
export default function Job({ parts }) {
  const path = parts.slice(1).map(encodeURIComponent).join("/");
  const { data, error, busy, ask } = useAnswer(`jobs/${path}`, "jobs", false);
  return html`<h1>${parts.slice(1).join("/")}</h1><div class="tools"><button onClick=${ask} disabled=${busy}>${busy ? "Working it out …" : "Work it out again"}</button></div>
    <${Waiting} error=${error} busy=${busy} data=${data} what="Working out where it stands" />
    ${data && html`<${Panel} title="Where it stands, and why"><${Told} rows=${data.told} /><//>
      ${data.line || data.plan ? html`<div class="two">${data.plan && html`<${Steps} plan=${data.plan} observed=${data.observed} />`}${whoami.value?.can?.whatif && html`<${Helps} name=${data.job} helps=${data.helps} />`}</div>` : ""}${data.choices?.length > 0 && html`<${Choices} choices=${data.choices} currency=${data.currency} />`}`}`;
}
