// @ts-check
// Doctor: what is wrong with the installation, worst first, and what to do about it.
import { Panel, Waiting, html, useAnswer } from "../parts.js";

/** Level, sign, what one is called, and several. */
const LOOKS = /** @type {[string, string, string, string][]} */ ([
  ["error", "✗", "error", "errors"], ["warning", "!", "warning", "warnings"], ["notChecked", "?", "not checked", "not checked"], ["ok", "✓", "ok", "ok"],
]);
const badness = (/** @type {string} */ level) => LOOKS.findIndex(([name]) => name === level);

/** @param {{finding: any}} props */
function Finding({ finding }) {
  const [, sign, words] = LOOKS[badness(finding.level)];
  return html`<div class=${`finding ${finding.level}`}><p><strong><span aria-hidden="true">${sign}</span> ${words}</strong> <span class="dim">${finding.check}</span></p><p>${finding.message}</p>
    ${finding.fix && html`<p><strong>${finding.level === "notChecked" ? "Needs" : "Fix"}:</strong> ${finding.fix}</p>`}
    ${finding.objects.length > 0 && html`<details><summary>${finding.objects.length} object${finding.objects.length === 1 ? "" : "s"}</summary><p class="small">${finding.objects.join(", ")}</p></details>`}</div>`;
}

export default function Doctor() {
  const { data, error, busy, ask } = useAnswer("doctor");
  const again = html`<div class="tools"><button onClick=${ask} disabled=${busy}>${busy ? "Looking …" : "Look again"}</button>${data && html`<span class="dim">An answer is kept for half a minute.</span>`}</div>`;
  if (!data) return html`<h1>Doctor</h1>${again}<${Waiting} error=${error} busy=${busy} data=${data} what="Looking at the installation: some seconds" />`;
  const groups = new Map();
  for (const finding of data.findings) groups.set(finding.group, [...(groups.get(finding.group) || []), finding]);
  const worst = (/** @type {any[]} */ all) => Math.min(...all.map((each) => badness(each.level)));
  return html`<h1>Doctor</h1>${again}<${Waiting} error=${error} what="" />
    <p role="status">${LOOKS.filter(([level]) => data.summary[level]).map(([level, , one, several]) => `${data.summary[level]} ${data.summary[level] === 1 ? one : several}`).join(", ") || "Nothing was looked at."}</p>
    ${[...groups].sort((a, b) => worst(a[1]) - worst(b[1])).map(([name, all]) => html`<${Panel} key=${name} title=${name}>${[...all].sort((a, b) => badness(a.level) - badness(b.level)).map((each, at) => html`<${Finding} key=${at} finding=${each} />`)}<//>`)}`;
}
