// @ts-check
// Pieces that all pages are made of.
import { h } from "./vendor/preact.js";
import { useEffect, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import "./vendor/signals.js"; // components that read a signal are drawn again when it changes
import { ApiError, api, version } from "./store.js";
import { hue } from "./colours.js";

export const html = htm.bind(h);

/** An answer of the API, asked again when the stream says that it changed. Old data stays while new comes.
 * @param {string} path @param {string} [changes] @param {boolean} [often] */
export function useAnswer(path, changes = "", often = true) {
  const [state, set] = useState(/** @type {{data: any, error: ApiError | null, busy: boolean, path: string}} */ ({ data: null, error: null, busy: true, path }));
  const turn = changes && often ? version(changes).value : 0;
  const [again, ask] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    set((old) => ({ ...old, busy: true, ...(old.path === path ? {} : { data: null, error: null, path }) }));
    api(path, undefined, abort.signal).then(
      (data) => set({ data, error: null, busy: false, path }),
      (error) => abort.signal.aborted || set((old) => ({ ...old, error, busy: false })),
    );
    return () => abort.abort();
  }, [path, turn, again]);
  return { ...state, ask: () => ask((n) => n + 1) };
}

/** @param {{error: ApiError | null, busy?: boolean, data?: any, what: string}} props */
export function Waiting({ error, busy, data, what }) {
  if (error) return html`<div class=${`notice ${error.status === 403 ? "" : "bad"}`} role="alert">
    <strong>${error.status === 403 ? "Not allowed" : error.status === 0 ? "Away" : "No answer"}</strong> ${error.message} ${error.help && html`<span class="dim">${error.help}</span>`}</div>`;
  if (!data && busy) return html`<p class="dim working" role="status">${what} …</p>`;
  return null;
}

/** @param {{title: string, children?: any, more?: any, class?: string, level?: number}} props */
export const Panel = ({ title, children, more, ...rest }) => html`<section class=${`panel ${rest.class || ""}`} aria-label=${title}>
  <header><h2>${title}</h2>${more}</header>${children}</section>`;

/** Widths are set from script: the page's policy allows no style in markup.
 * @param {{parts: {share: number, kind: string, title: string}[], label: string}} props */
export const Bar = ({ parts, label }) => html`<div class="bar" role="img" aria-label=${label} title=${label}>
  ${parts.filter((part) => part.share > 0).map((part) => html`<i key=${part.kind} class=${`k-${part.kind}`} title=${part.title} style=${{ flexGrow: part.share }}></i>`)}</div>`;

const SIGNS = /** @type {Record<string, [string, string]>} */ ({ 0: ["○", "waits"], 1: ["●", "holds"], 2: ["✓", "over"], 3: ["‖", "paused"] });
/** State of a job: a sign, so that colour is not alone. @param {{state: string, phase?: number}} props */
export function State({ state, phase = 0 }) {
  const bad = /Fail|Degrad|Lost|Unknown/.test(state);
  const [sign, kind] = bad ? ["!", "bad"] : SIGNS[phase] || SIGNS[0];
  return html`<span class=${`state s-${kind}`}><b aria-hidden="true">${sign}</b>${state}</span>`;
}

/** @param {{name: string, text?: string}} props `namespace/name` */
export const JobLink = ({ name, text }) => name ? html`<a class="name" href=${`#/jobs/${name.split("/").map(encodeURIComponent).join("/")}`} title=${name}>${text || name}</a>` : html`<span class="dim">somebody else's job</span>`;

/** @param {{n: number}} props */
export function Swatch({ n }) {
  return html`<i class="swatch" aria-hidden="true" style=${{ background: hue(n) }}></i>`;
}

/**
 * A table that sorts by its columns; `columns` are [name, cell, sort key, class].
 * @param {{caption: string, columns: [string, (row: any) => any, ((row: any) => any)?, string?][], rows: any[], first?: number, down?: boolean, most?: number, keyOf?: (row: any) => string, empty?: string}} props
 */
export function Table({ caption, columns, rows, first = -1, down = false, most = 100, keyOf, empty = "Nothing." }) {
  const [by, sort] = useState({ at: first, down });
  const [shown, more] = useState(most);
  const key = columns[by.at]?.[2];
  const order = key ? [...rows].sort((a, b) => {
    const x = key(a), y = key(b);
    return (x < y ? -1 : x > y ? 1 : 0) * (by.down ? -1 : 1);
  }) : rows;
  return html`<div class="scroll" role="region" aria-label=${`${caption}: table`} tabindex="0"><table><caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map(([name, , value, kind], at) => html`<th key=${name} scope="col" class=${kind || ""} aria-sort=${by.at === at ? (by.down ? "descending" : "ascending") : undefined}>
      ${value ? html`<button onClick=${() => sort({ at, down: by.at === at ? !by.down : kind === "right" })}>${name}<span aria-hidden="true">${by.at === at ? (by.down ? " ↓" : " ↑") : ""}</span></button>` : name}</th>`)}</tr></thead>
    <tbody>${order.slice(0, shown).map((row, at) => html`<tr key=${keyOf ? keyOf(row) : at}>${columns.map(([name, cell, , kind]) => html`<td key=${name} class=${kind || ""} data-name=${name}>${cell(row)}</td>`)}</tr>`)}
    ${rows.length === 0 && html`<tr><td class="dim" colspan=${columns.length}>${empty}</td></tr>`}</tbody></table>
    ${rows.length > shown && html`<p><button class="plain" onClick=${() => more(shown + 200)}>Show more (${rows.length - shown} left)</button></p>`}</div>`;
}

/** Rows that `trimtab explain` prints; a name that repeats is empty. @param {{rows: [string, string][]}} props */
export const Told = ({ rows }) => html`<dl class="told">${rows.map(([name, text], at) => html`<div key=${at}><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>`;
