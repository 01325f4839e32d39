// @ts-check
// What if: a change is described, two lives of the cluster are simulated, and stand side by side. The question is in the link.
import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
import { JobLink, Panel, Table, Waiting, html, useAnswer } from "../parts.js";
import { DEGREES, KINDS, asked, changeOf, linkOf, rowsOf } from "../change.js";
import { api, columns, tick } from "../store.js";
import { minutes, percent } from "../format.js";

const MOST_JOBS = 40; // as the command shows
const PRECISIONS = ["FP32", "FP16", "BF16", "FP8"];
const NOTHING = 30; // seconds that are no difference

/** @param {{label: string, hint?: string, broad?: boolean, children?: any}} props */
const Field = ({ label, hint, broad, children }) => html`<label class=${`field ${broad ? "broad" : ""}`}><span>${label}</span>${children}${hint && html`<small class="dim">${hint}</small>`}</label>`;

/** @param {any} props */
function Row({ row, change, remove, queues, policies }) {
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) => change({ ...row, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  const input = (/** @type {string} */ name, /** @type {any} */ more = {}) => html`<input value=${row[name]} onInput=${set(name)} autocomplete="off" spellcheck=${false} ...${more} />`;
  const count = (/** @type {string} */ name, /** @type {any} */ more = {}) => input(name, { type: "number", inputmode: "numeric", step: 1, ...more });
  return html`<fieldset><legend>${KINDS[row.kind].title}</legend>
    ${row.kind === "add" && html`<div class="fields"><${Field} label="GPU type">${input("type", { list: "types", required: true, placeholder: "H100" })}<//><${Field} label="Nodes">${count("count", { min: 1, required: true })}<//><${Field} label="GPUs of each">${count("gpus", { min: 1, required: true })}<//></div>`}
    ${row.kind === "away" && html`<div class="fields"><${Field} label="Nodes" hint="* stands for any part of a name">${input("name", { list: "nodes", required: true })}<//><${Field} label="How" broad><select value=${row.how} onChange=${set("how")}><option value="remove">drained: their jobs stop, and wait again</option><option value="cordon">cordoned: their jobs go on, no others come</option></select><//></div>`}
    ${row.kind === "job" && html`<div class="fields"><${Field} label="Job">${input("job", { list: "jobs", required: true, placeholder: "namespace/name" })}<//><${Field} label="Priority">${count("priority")}<//><${Field} label="Queue">${input("queue", { list: "queues" })}<//><${Field} label="GPUs, at least">${count("min", { min: 1 })}<//><${Field} label="GPUs, at most">${count("max", { min: 1, required: row.min !== "" })}<//><${Field} label="GPU types" hint="any, or several">${input("types", { list: "types" })}<//><${Field} label="Nodes, at most">${count("nodes", { min: 1 })}<//><${Field} label="Precision"><select value=${row.precision} onChange=${set("precision")}><option value="">as it is</option>${PRECISIONS.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select><//><${Field} label="Parallelism" broad><select value=${row.divided} onChange=${set("divided")}><option value="">as it is</option><option value="free">left free: whatever is best</option><option value="given">with these degrees</option></select><//></div>
      ${row.divided === "given" && html`<div class="fields">${DEGREES.map(([name, title]) => html`<${Field} key=${name} label=${title} hint="empty: free"><input type="number" inputmode="numeric" min="1" step="1" value=${row.degrees[name] || ""} onInput=${(/** @type {any} */ event) => change({ ...row, degrees: { ...row.degrees, [name]: event.target.value } })} /><//>`)}</div>`}
      <label class="check"><input type="checkbox" checked=${row.suspend} onChange=${set("suspend")} /> Suspended: it gives back what it holds, and does not wait</label><p class="dim small">What is left empty stays as it is.</p>`}
    ${row.kind === "submit" && html`<${Field} label="Manifest: LLMTrainingJob, TrainJob, PyTorchJob, JobSet …"><textarea class="code" rows="8" required spellcheck=${false} value=${row.manifest} onInput=${set("manifest")}></textarea><//>`}
    ${row.kind === "policy" && html`<div class="fields"><${Field} label="Policy"><select value=${row.policy} onChange=${set("policy")} required><option value="">choose one</option>${policies.map((/** @type {string} */ name) => html`<option key=${name} value=${name}>${name}</option>`)}</select><//></div>`}
    ${row.kind === "queue" && html`<${Queue} row=${row} change=${change} queues=${queues} />`}
    <button type="button" class="plain" onClick=${remove} aria-label=${`Take back: ${KINDS[row.kind].title}`}>Take back</button></fieldset>`;
}

/** A queue's limits replace the ones that it has: they are filled in once its name is complete. @param {any} props */
function Queue({ row, change, queues }) {
  const name = (/** @type {any} */ event) => {
    const queue = event.target.value, known = queues.find((/** @type {any} */ each) => each.name === queue);
    const has = known?.quotas.filter((/** @type {any} */ each) => each.limit !== null || each.guaranteed > 0);
    change({ ...row, queue, ...(known && { weight: String(known.weight), quotas: has.map((/** @type {any} */ each) => ({ gpuType: each.gpuType, gpus: each.limit === null ? "" : String(each.limit), guaranteed: String(each.guaranteed) })) }) });
  };
  const quota = (/** @type {number} */ at, /** @type {any} */ more) => change({ ...row, quotas: row.quotas.map((/** @type {any} */ each, /** @type {number} */ n) => (n === at ? { ...each, ...more } : each)) });
  return html`<div class="fields"><${Field} label="Queue"><input value=${row.queue} list="queues" required autocomplete="off" onInput=${name} /><//><${Field} label="Weight"><input type="number" min="1" max="1000" required value=${row.weight} onInput=${(/** @type {any} */ event) => change({ ...row, weight: event.target.value })} /><//></div>
    ${row.quotas.map((/** @type {any} */ each, /** @type {number} */ at) => html`<div class="fields" key=${at}><${Field} label="GPU type" hint="* for all together"><input value=${each.gpuType} list="types" required onInput=${(/** @type {any} */ event) => quota(at, { gpuType: event.target.value })} /><//><${Field} label="Most GPUs" hint="empty for no limit"><input type="number" min="0" value=${each.gpus} onInput=${(/** @type {any} */ event) => quota(at, { gpus: event.target.value })} /><//><${Field} label="Guaranteed GPUs"><input type="number" min="0" value=${each.guaranteed} onInput=${(/** @type {any} */ event) => quota(at, { guaranteed: event.target.value })} /><//></div>`)}
    <button type="button" class="plain" onClick=${() => change({ ...row, quotas: [...row.quotas, { gpuType: "", gpus: "", guaranteed: "0" }] })}>One more GPU type</button>`;
}

/** What may be filled in. Nodes, jobs and types are those that the stream tells. */
function Known({ queues }) {
  const turn = Math.floor(tick.value / 30); // names change seldom, readings each second
  const lists = useMemo(() => /** @type {[string, string[]][]} */ ([["types", columns.type], ["nodes", columns["node.name"]], ["jobs", (columns["job.key"] || []).filter((_, at) => columns["job.phase"][at] < 2)]]), [turn, columns["job.key"]]);
  return html`${[...lists, ["queues", queues.map((/** @type {any} */ each) => each.name)]].map(([id, names]) => html`<datalist key=${id} id=${id}>${(names || []).filter(Boolean).map((/** @type {string} */ name) => html`<option key=${name} value=${name}></option>`)}</datalist>`)}`;
}

const begins = (/** @type {any} */ course) => course.start === null ? "never starts" : course.runs ? "runs" : course.start === 0 ? "starts now" : `starts in ${minutes(course.start)}`;
const ends = (/** @type {any} */ course) => course.end === null ? "never ends" : `ends in ${minutes(course.end)}`;
const said = (/** @type {any} */ course) => `${begins(course)}${course.start === null ? "" : `, ${ends(course)}`}${course.held ? `, ${course.held}` : ""}${course.restarts ? ` ↻${course.restarts}` : ""}`;

/** @param {{was: any, will: any, later: number | null}} props */
function Difference({ was, will, later }) {
  if (later === null) return html`<span class="dim">${!was ? "added" : !will ? "gone" : "–"}</span>`;
  if (Math.abs(later) < NOTHING) return html`<span class="dim">same</span>`;
  return html`<strong class=${later > 0 ? "plus" : "minus"}><span aria-hidden="true">${later > 0 ? "▶" : "◀"}</span> ${minutes(Math.abs(later))} ${later > 0 ? "later" : "sooner"}</strong>`;
}

/** One course: waits, then holds GPUs. @param {{name: string, course: any, whole: number, kind: string}} props */
function Course({ name, course, whole, kind }) {
  const part = (/** @type {number} */ seconds) => `${Math.min(100, (100 * seconds) / whole)}%`;
  const start = course?.start ?? whole, end = course?.end ?? whole;
  return html`<div class="course"><span class="dim">${name}</span><span class="track" aria-hidden="true">${course && html`<i class="waits" style=${{ width: part(start) }}></i>${course.start !== null && html`<i class=${kind} style=${{ width: part(end - start) }}></i>`}`}</span><span class="value">${course ? said(course) : "not there"}</span></div>`;
}

/** @param {{data: any}} props */
function Lives({ data }) {
  const { before, after, ends_later_seconds: later } = data, [shown, more] = useState(MOST_JOBS);
  const names = useMemo(() => Object.keys(later).sort((a, b) => Number(later[a] !== null) - Number(later[b] !== null) || Math.abs(later[b] || 0) - Math.abs(later[a] || 0) || (a < b ? -1 : 1)), [data]);
  const whole = Math.max(before.end, after.end, 1), sum = (/** @type {(value: number) => boolean} */ of) => names.filter((name) => later[name] !== null && of(later[name])).length;
  const time = (/** @type {number | null} */ value) => value === null ? "–" : minutes(value);
  const rows = [["Policy", before.policy, after.policy], ["Average wait", time(before.average_wait), time(after.average_wait)], ["Average, creation to end", time(before.average_jct), time(after.average_jct)], ["Last job ends in", time(before.end), time(after.end)], ["GPUs in use until then", percent(before.utilization), percent(after.utilization)]];
  const aside = [...new Set([...Object.keys(before.set_aside), ...Object.keys(after.set_aside)])].sort();
  return html`<${Panel} title="The cluster" class="totals"><p role="status">${sum((value) => value <= -NOTHING)} of the jobs end sooner, ${sum((value) => value >= NOTHING)} later, ${sum((value) => Math.abs(value) < NOTHING)} as today.</p>
      <${Table} caption="Totals of both lives" rows=${rows} columns=${[["Figure", (/** @type {any} */ row) => row[0]], ["Today", (/** @type {any} */ row) => row[1], undefined, "right"], ["With the change", (/** @type {any} */ row) => html`<strong>${row[2]}</strong>`, undefined, "right"]]} /><//>
    <${Panel} title="Its jobs"><p class="legend"><span><i class="waits" aria-hidden="true"></i>waits</span><span><i class="today" aria-hidden="true"></i>holds GPUs today</span><span><i class="changed" aria-hidden="true"></i>with the change</span><span>from now to the last end, in ${minutes(whole)}</span></p>
      <ol class="lives">${names.slice(0, shown).map((name) => html`<li key=${name}><div class="row"><${JobLink} name=${name} /><span class="grow"></span><${Difference} was=${before.jobs[name]} will=${after.jobs[name]} later=${later[name]} /></div>
        <${Course} name="Today" course=${before.jobs[name]} whole=${whole} kind="today" /><${Course} name="Changed" course=${after.jobs[name]} whole=${whole} kind="changed" /></li>`)}</ol>
      ${names.length > shown && html`<button class="plain" onClick=${() => more(shown + 100)}>Show more (${names.length - shown} left, which the change means less to)</button>`}<//>
    ${aside.length > 0 && html`<${Panel} title="Not simulated"><${Table} caption="Jobs of which nothing can be said" rows=${aside} columns=${[["Job", (/** @type {string} */ name) => html`<${JobLink} name=${name} />`], ["In", (/** @type {string} */ name) => name in before.set_aside && name in after.set_aside ? "both lives" : name in after.set_aside ? "the changed one" : "today's"], ["Why", (/** @type {string} */ name) => after.set_aside[name] || before.set_aside[name], undefined, "wrap"]]} /><//>`}
    <${Panel} title="Not known"><ul>${data.uncertain.map((/** @type {string} */ line) => html`<li key=${line}>${line}</li>`)}</ul><//>`;
}

/** @param {{query: URLSearchParams}} props */
export default function Whatif({ query }) {
  const written = query.toString(), found = asked(query);
  const [rows, set] = useState(() => [query.get("job") ? { kind: "job", ...KINDS.job.fresh, job: query.get("job") } : { kind: "add", ...KINDS.add.fresh }]), [rigid, stay] = useState(false);
  const [state, tell] = useState(/** @type {{data: any, error: any, busy: boolean}} */ ({ data: null, error: null, busy: false }));
  const asking = useRef(/** @type {{link: string, abort: AbortController} | null} */ (null));
  const queues = useAnswer("queues").data?.items || [], policies = Object.keys(useAnswer("policies").data?.items || {});
  const ask = async (/** @type {any} */ change, /** @type {boolean} */ fixed) => {
    asking.current?.abort.abort();
    const mine = asking.current = { link: linkOf(change, fixed), abort: new AbortController() };
    tell({ data: null, error: null, busy: true });
    try {
      tell({ data: await api("whatif", { change, policy: "", rigid: fixed }, mine.abort.signal), error: null, busy: false });
    } catch (error) {
      if (!mine.abort.signal.aborted) tell({ data: null, error, busy: false });
    }
  };
  useEffect(() => { // a link that is opened, and the way back to an earlier question
    if (!found || found === "wrong" || asking.current?.link === linkOf(found.change, found.rigid)) return;
    set(rowsOf(found.change));
    stay(found.rigid);
    ask(found.change, found.rigid);
  }, [written]);
  useEffect(() => () => asking.current?.abort.abort(), []);
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    const change = changeOf(rows);
    ask(change, rigid);
    location.hash = linkOf(change, rigid);
  };
  const put = (/** @type {number} */ at, /** @type {any} */ row) => set(rows.map((each, n) => (n === at ? row : each)));
  const { data, error, busy } = state;
  return html`<h1>What if</h1><p class="dim">What would become of all jobs if something were changed. Nothing is: two lives, as it is and with the change, are simulated from now on.</p>
    ${found === "wrong" && html`<div class="notice bad" role="alert"><strong>This link holds no question that can be read.</strong></div>`}
    <${Panel} title="The change"><form class="form" onSubmit=${submit}><${Known} queues=${queues} />
      ${rows.map((row, at) => html`<${Row} key=${at} row=${row} queues=${queues} policies=${policies} change=${(/** @type {any} */ next) => put(at, next)} remove=${() => set(rows.filter((_, n) => n !== at))} />`)}
      <div class="chips" role="group" aria-label="More to change">${Object.entries(KINDS).map(([kind, { add, fresh }]) => html`<button type="button" key=${kind} onClick=${() => set([...rows, { kind, ...structuredClone(fresh) }])}><span aria-hidden="true">+ </span>${add}</button>`)}</div>
      <label class="check"><input type="checkbox" checked=${rigid} onChange=${(/** @type {any} */ event) => stay(event.target.checked)} /> No job that runs gives way or moves</label>
      <div class="tools"><button class="main" disabled=${busy || rows.length === 0}>${busy ? "Working it out …" : "Work it out"}</button>${found && found !== "wrong" && html`<a href=${linkOf(found.change, found.rigid)}>Link to this question</a>`}</div></form><//>
    <${Waiting} error=${error} busy=${busy} data=${data} what="Living both: up to a minute" />
    ${data && html`<${Lives} data=${data} />`}`;
}
