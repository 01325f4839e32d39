// @ts-check
// A question to What if: the rows of its form, the change that the API takes, and the link that holds it.

/** Kinds of rows: what one is called, what the button that adds one says, and what is in a new one.
 * @type {Record<string, {title: string, add: string, fresh: any}>} */
export const KINDS = {
  add: { title: "Nodes added", add: "Add nodes", fresh: { type: "", count: "1", gpus: "8" } },
  away: { title: "Nodes taken away", add: "Drain nodes", fresh: { name: "", how: "remove" } },
  job: { title: "A job changed", add: "Change a job", fresh: { job: "", priority: "", queue: "", min: "", max: "", types: "", nodes: "", divided: "", degrees: {}, other: {}, precision: "", suspend: false } },
  submit: { title: "A job submitted", add: "Submit a job", fresh: { manifest: "" } },
  queue: { title: "A queue changed", add: "Change a queue", fresh: { queue: "", weight: "1", quotas: [{ gpuType: "*", gpus: "", guaranteed: "0" }] } },
  policy: { title: "Another policy decides", add: "Another policy", fresh: { policy: "" } },
};
/** Degrees that may be given, as the spec of a job names them, and what people call them. @type {[string, string][]} */
export const DEGREES = [["tensor", "Tensor"], ["pipeline", "Pipeline"], ["context", "Context"], ["expert", "Expert"]];
const text = (/** @type {any} */ value) => (value === undefined || value === null ? "" : String(value));
const number = (/** @type {string} */ value) => (value.trim() === "" ? undefined : Number(value));

/** How the work is divided: degrees that are given have fields, and what else a spec may say is kept as it is. @param {any} asked */
function divided(asked) {
  if (!asked) return { divided: "", degrees: {}, other: {} };
  const degrees = /** @type {Record<string, string>} */ ({}), other = { ...asked };
  for (const [name] of DEGREES) if (asked[name]?.fixed != null) { degrees[name] = text(asked[name].fixed); delete other[name]; }
  return { divided: Object.keys(asked).length ? "given" : "free", degrees, other };
}

/** The rows that a change fills in. @param {any} change @returns {any[]} */
export function rowsOf(change) {
  const rows = [];
  for (const each of change.nodes?.add || []) rows.push({ kind: "add", type: text(each.type), count: text(each.count ?? 1), gpus: text(each.gpus ?? 8) });
  for (const how of ["remove", "cordon"]) for (const name of change.nodes?.[how] || []) rows.push({ kind: "away", name: text(name), how });
  for (const [job, edit] of Object.entries(change.jobs || {})) {
    rows.push({ kind: "job", job, priority: text(edit.priority), queue: text(edit.queue), min: text(edit.gpus?.min), max: text(edit.gpus?.max), types: edit.gpuTypes ? edit.gpuTypes.join(", ") || "any" : "", nodes: text(edit.maxNodes), ...divided(edit.parallelism), precision: text(edit.precision), suspend: edit.suspend === true });
  }
  for (const manifest of change.submit || []) rows.push({ kind: "submit", manifest: text(manifest) });
  for (const [queue, spec] of Object.entries(change.queues || {})) {
    rows.push({ kind: "queue", queue, weight: text(spec.weight ?? 1), quotas: (spec.quotas || []).map((/** @type {any} */ each) => ({ gpuType: text(each.gpuType), gpus: text(each.gpus), guaranteed: text(each.guaranteed ?? 0) })) });
  }
  if (change.policy) rows.push({ kind: "policy", policy: text(change.policy) });
  return rows;
}

/** @param {any} row */
function edit(row) {
  const min = number(row.min), max = number(row.max), types = row.types.trim();
  return {
    ...(row.priority.trim() !== "" && { priority: number(row.priority) }),
    ...(row.queue.trim() !== "" && { queue: row.queue.trim() }),
    ...((min !== undefined || max !== undefined) && { gpus: { ...(min !== undefined && { min }), ...(max !== undefined && { max }) } }),
    ...(row.nodes.trim() !== "" && { maxNodes: number(row.nodes) }),
    ...(row.divided !== "" && { parallelism: row.divided === "free" ? {} : { ...row.other, ...Object.fromEntries(DEGREES.flatMap(([name]) => (row.degrees[name]?.trim() ? [[name, { fixed: number(row.degrees[name]) }]] : []))) } }),
    ...(row.precision !== "" && { precision: row.precision }),
    ...(types !== "" && { gpuTypes: types === "any" ? [] : types.split(/[\s,]+/).filter(Boolean) }),
    ...(row.suspend && { suspend: true }),
  };
}

/** The change that the rows of the form ask for. @param {any[]} rows */
export function changeOf(rows) {
  const change = /** @type {any} */ ({});
  for (const row of rows) {
    if (row.kind === "add") ((change.nodes ??= {}).add ??= []).push({ type: row.type.trim(), count: number(row.count), gpus: number(row.gpus) });
    else if (row.kind === "away") ((change.nodes ??= {})[row.how] ??= []).push(row.name.trim());
    else if (row.kind === "job") (change.jobs ??= {})[row.job.trim()] = edit(row);
    else if (row.kind === "submit") (change.submit ??= []).push(row.manifest);
    else if (row.kind === "policy") change.policy = row.policy;
    else {
      const quotas = row.quotas.map((/** @type {any} */ each) => ({ gpuType: each.gpuType.trim(), ...(each.gpus.trim() !== "" && { gpus: number(each.gpus) }), guaranteed: number(each.guaranteed) ?? 0 }));
      (change.queues ??= {})[row.queue.trim()] = { weight: number(row.weight) ?? 1, quotas };
    }
  }
  return change;
}

/** Where What if is open with this change filled in: the fragment, which no server sees. @param {any} change @param {boolean} [rigid] */
export const linkOf = (change, rigid = false) => `#/whatif?change=${encodeURIComponent(JSON.stringify(change))}${rigid ? "&rigid=1" : ""}`;

/** What a link asks: null for nothing, `wrong` for what cannot be read. @param {URLSearchParams} query @returns {{change: any, rigid: boolean} | "wrong" | null} */
export function asked(query) {
  const written = query.get("change");
  if (!written) return null;
  try {
    const change = JSON.parse(written);
    rowsOf(change); // what has other shapes than these cannot be filled in
    return { change, rigid: query.get("rigid") === "1" };
  } catch {
    return "wrong";
  }
}
