// @ts-check
// Numbers as the commands write them (trimtab/ui/words.py): the same value reads the same everywhere.

/** `850 ms`, `42 s`, `3m20s`, `5h07m`, `12d4h`. @param {number} seconds */
export function duration(seconds) {
  if (Math.round(seconds * 1000) < 1000) return `${Math.round(seconds * 1000)} ms`;
  const whole = Math.round(seconds);
  for (const [size, unit, part, below] of /** @type {[number, string, number, string][]} */ ([
    [86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]])) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / part);
      return unit === "d" ? `${Math.floor(whole / size)}d${rest}h` : `${Math.floor(whole / size)}${unit}${String(rest).padStart(2, "0")}${below}`;
    }
  }
  return `${whole} s`;
}
/** `0 min`, `14 min`, `2h04m`. @param {number} seconds */
export function minutes(seconds) {
  const whole = 60 * Math.max(0, Math.round(seconds / 60));
  return whole < 3600 ? `${whole / 60} min` : duration(whole);
}
/** Three figures. @param {number} value */
const three = (value) => String(Number(value.toPrecision(3)));
/** `41.2k`, `1.03M`. @param {number} value */
export function rate(value) {
  for (const [size, unit] of /** @type {[number, string][]} */ ([[1e6, "M"], [1e3, "k"]]))
    if (Number(value.toPrecision(3)) >= size) return three(value / size) + unit;
  return three(value);
}
/** `17.8 s`, `2.3 ms`. @param {number} value */
export const step = (value) => value >= 60 ? duration(value) : value >= 1 ? `${three(value)} s` : `${three(value * 1000)} ms`;
/** @param {number} count */
export const bytes = (count) => `${(count / 2 ** 30).toFixed(1)} GiB`;
/** @param {number} value */
export const amount = (value) => value >= 10 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(2)));
/** What a shadow would have done, in a sentence.
 * @param {any} shadow */
export const shadowed = ({ same, jobs, savedSeconds }) => `the same for ${same} of ${jobs} jobs${savedSeconds ? `; they would end ${duration(Math.abs(savedSeconds))} ${savedSeconds > 0 ? "sooner" : "later"} in all` : ""}`;
/** @param {number} value from 0 to 1 */
export const percent = (value) => `${Math.round(100 * value)} %`;
/** `14:05`, or `27 Nov 14:05` on another day. @param {number} seconds @param {number} [today] */
export function clock(seconds, today = Date.now() / 1000) {
  const date = new Date(seconds * 1000), same = new Date(today * 1000).toDateString() === date.toDateString();
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return same ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}
/** `H100-SXM5-80GB` -> `H100`: for where there is no room; the whole name stands in the title. @param {string} type */
export const short = (type) => type.split("-")[0];
/** Plans in API objects use RFC 3339. @param {string | undefined} text */
export const moment = (text) => text ? Date.parse(text) / 1000 : 0;
/** The values of a plan as `dp=2 tp=4 pp=1`. @param {any} plan */
export function plan(plan) {
  const parts = [`dp=${plan.data ?? 1}`, `tp=${plan.tensor ?? 1}`, `pp=${plan.pipeline ?? 1}`];
  for (const [name, key] of [["vpp", "virtual"], ["cp", "context"], ["ep", "expert"]]) if ((plan[key] ?? 1) > 1) parts.push(`${name}=${plan[key]}`);
  for (const [name, key] of [["zero", "zero_stage"], ["shard", "shard"]]) if (plan[key]) parts.push(`${name}=${plan[key]}`);
  return parts.join(" ");
}
