// @ts-check
// Policies: who decides, and what the shadow would have done.
import { JobLink, Panel, Table, Waiting, html, useAnswer } from "../parts.js";
import { duration, shadowed } from "../format.js";

export default function Policies() {
  const { data, error, busy } = useAnswer("policies", "policies");
  if (!data) return html`<h1>Policies</h1><${Waiting} error=${error} busy=${busy} data=${data} what="Reading the policies" />`;
  const { deciding, shadow } = data;
  return html`<h1>Policies</h1><${Waiting} error=${error} what="" /><${Panel} title="Who decides"><p><strong>${deciding.policy}</strong>${deciding.chosen !== deciding.policy ? html` <span class="warned">instead of ${deciding.chosen}</span>` : ""}; fallback ${deciding.fallback || "none"}</p><//>
    ${shadow?.policy && html`<${Panel} title=${`Shadow: ${shadow.policy}`}><p>It would have done ${shadowed(shadow)}.</p><${Table} caption="Differences" rows=${shadow.differences || []} columns=${[["Job", (/** @type {any} */ row) => html`<${JobLink} name=${row.job} />`], ["It would", (/** @type {any} */ row) => row.summary, undefined, "wrap"], ["Ends", (/** @type {any} */ row) => row.differenceSeconds ? `${duration(Math.abs(row.differenceSeconds))} ${row.differenceSeconds > 0 ? "later" : "sooner"}` : "the same", (/** @type {any} */ row) => row.differenceSeconds || 0]]} /><//>`}
    <${Table} caption="Registered policies" rows=${Object.entries(data.items).map(([name, each]) => ({ ...each, name }))} first=${0} columns=${[["Name", (/** @type {any} */ row) => row.name, (/** @type {any} */ row) => row.name], ["Kind", (/** @type {any} */ row) => row.kind, (/** @type {any} */ row) => row.kind], ["Source", (/** @type {any} */ row) => row.source, undefined, "wrap"], ["Problem", (/** @type {any} */ row) => row.problem || "", undefined, "wrap"]]} />`;
}
