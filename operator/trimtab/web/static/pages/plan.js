// @ts-check
// Plan: what a job would get, before it is submitted.
import { useState } from "../vendor/hooks.js";
import { Panel, Told, Waiting, html } from "../parts.js";
import { api } from "../store.js";
import { Choices } from "./job.js";

export default function Plan() {
  const [text, type] = useState(""), [state, set] = useState(/** @type {{data: any, error: any, busy: boolean}} */ ({ data: null, error: null, busy: false }));
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    set({ data: null, error: null, busy: true });
    try {
      set({ data: await api("plan", { manifest: text, policy: "", priority: 0, set: {} }), error: null, busy: false });
    } catch (error) {
      set({ data: null, error, busy: false });
    }
  };
  const { data, error, busy } = state;
  return html`<h1>Plan</h1><form class="form" onSubmit=${ask}><label for="manifest">Manifest of a job: LLMTrainingJob, TrainJob, PyTorchJob, JobSet …</label>
      <textarea id="manifest" class="code" rows="14" spellcheck=${false} required value=${text} onInput=${(/** @type {any} */ event) => type(event.target.value)}></textarea>
      <p class="dim">Nothing is submitted: this only works out what would be decided now.</p><div><button class="main" disabled=${busy}>${busy ? "Working it out …" : "Work it out"}</button></div></form>
    <${Waiting} error=${error} busy=${busy} data=${data} what="Working it out" />
    ${data && html`<${Panel} title="What it would get"><${Told} rows=${data.told || []} />${(data.notes || []).map((/** @type {string} */ note) => html`<p class="warned" key=${note}>${note}</p>`)}<//>${data.choices?.length > 0 && html`<${Choices} choices=${data.choices} currency=${data.currency} />`}`}`;
}
