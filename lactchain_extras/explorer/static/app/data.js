// The tables of the page, and how their values are shown.

const { h, render } = preact;
const { useEffect, useLayoutEffect, useMemo, useRef, useState } = preactHooks;
const html = htm.bind(h);
const facts = JSON.parse(document.getElementById("facts").textContent);

/** A table by columns; of a column with words, `codes` say which word each row has. */
class Table {
  constructor(content) {
    this.columns = content;
    this.length = lengthOf(Object.values(content)[0] || []);
    this.expanded = {};
  }

  /** All values of a column. */
  column(name) {
    if (!(name in this.expanded)) {
      const held = this.columns[name];
      this.expanded[name] = Array.isArray(held) ? held : held.codes.map((code) => held.words[code]);
    }
    return this.expanded[name];
  }

  at(name, row) {
    return this.column(name)[row];
  }

  row(number) {
    return Object.fromEntries(Object.keys(this.columns).map((name) => [name, this.at(name, number)]));
  }

  /** Which rows have a value that fits; each different value is looked at once. */
  where(name, fits) {
    const held = this.columns[name];
    if (Array.isArray(held)) return Uint8Array.from(held, (value) => (fits(value) ? 1 : 0));
    const fitting = held.words.map((word) => (fits(word) ? 1 : 0));
    return Uint8Array.from(held.codes, (code) => fitting[code]);
  }

  /** The different values of a column, in their order. */
  values(name) {
    const held = this.columns[name];
    const values = [...new Set(Array.isArray(held) ? held : held.words)];
    return values.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : naturally(a, b)));
  }
}

function lengthOf(column) {
  return Array.isArray(column) ? column.length : column.codes.length;
}

function naturally(a, b) {
  return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
}

async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const tables = {};

/** Reads every table of the page, and what follows from them. */
async function readTables() {
  for (const element of document.querySelectorAll("script[data-table]")) {
    tables[element.dataset.table] = new Table(await inflated(element.textContent));
    element.remove();
  }
  index.firstSteps = starts(tables.episodes.column("num_steps"));
  valueSteps();
  if (!tables.answers.length) tables.answers = firstAnswers();
}

/** Values of completions by the critic of their round, and advantages r + γᵏ V(next) − V; null where they are not known. */
function valueSteps() {
  const { episodes, steps, values } = tables, known = new Map();
  const value = new Array(steps.length).fill(null), advantage = new Array(steps.length).fill(null);
  const place = (table, row, state) => `${table.at("run", row)} ${table.at("round", row)} ${state}`;
  values.column("value").forEach((v, row) => v != null && known.set(place(values, row, values.at("state", row)), row));
  for (let episode = 0; known.size && episode < episodes.length; episode++) {
    const own = stepsOf(episode), states = [...own.map((step) => steps.at("state", step)), episodes.at("end_state", episode)];
    const rows = states.map((state) => known.get(place(episodes, episode, state)));
    own.forEach((step, n) => {
      const isOver = n + 1 === own.length && episodes.at("terminated", episode);
      if (rows[n] == null) return;
      value[step] = values.at("value", rows[n]);
      if (isOver || rows[n + 1] != null) advantage[step] = chainReturn(step, rows[n], isOver ? 0 : values.at("value", rows[n + 1])) - value[step];
    });
  }
  Object.assign(steps.columns, { value, advantage });
}

/** What a completion earned and what the state after it is worth, discounted as the critic of a row of values does. */
function chainReturn(step, row, next) {
  const gamma = tables.values.at("gamma", row), { rewards, reward, executed } = tables.steps.row(step);
  if (tables.values.at("discount_per", row) === "chain") return reward + gamma * next;
  const later = rewards.reduce((sum, r, n) => sum + (gamma ** n - 1) * r, 0);
  return reward + later + gamma ** Math.max(1, executed.length) * next;
}

/** What evaluations' episodes begin with, one for each start state and round: the answers of a run that has recorded none. */
function firstAnswers() {
  const { episodes, steps, results } = tables, found = new Map();
  for (const episode of rowsWith("episodes", "run", 0)) {
    const { round, start_state: state, num_actions, episode_return } = episodes.row(episode), key = `${round} ${state}`;
    const result = rowsWith("results", "state", state).find((row) => results.at("run", row) === 0 && results.at("round", row) === round);
    if (state == null || found.has(key) || result == null || !stepsOf(episode).length || evaluationFrom(state, round) !== episode) continue;
    const first = steps.row(index.firstSteps[episode]), { success, shortest } = results.row(result);
    const q = first.advantage == null ? null : first.value + first.advantage;
    found.set(key, { ...first, round, state, text: first.prompt, invalid: Number(first.invalid != null), success, num_actions, return: episode_return, q, shortest });
  }
  const rows = [...found.values()], names = Object.keys(tables.answers.columns);
  return new Table(Object.fromEntries(names.map((name) => [name, rows.map((row) => row[name] ?? null)])));
}

const index = { firstSteps: [0] };

function starts(lengths) {
  const first = new Int32Array(lengths.length + 1);
  lengths.forEach((length, row) => (first[row + 1] = first[row] + length));
  return first;
}

/** Rows of a table in which a column has this value, each column gone through once. */
const grouped = new Map();
function rowsWith(table, name, value) {
  const key = `${table} ${name}`;
  if (!grouped.has(key)) {
    const rows = new Map();
    tables[table].column(name).forEach((entry, row) => {
      if (!rows.has(entry)) rows.set(entry, []);
      rows.get(entry).push(row);
    });
    grouped.set(key, rows);
  }
  return grouped.get(key).get(value) || [];
}

/** The rows of a run by its number as text, or of all. */
function ofRun(table, run) {
  return run === "all" ? tables[table].column("run").map((_, row) => row) : rowsWith(table, "run", Number(run));
}

/** Candidates of one run's rounds, those of this one where none is named. */
function candidatesWith(name, value, run = 0) {
  return rowsWith("candidates", name, value).filter((row) => tables.candidates.at("run", row) === run);
}

/** A column of the completions of this run; those of other runs come behind. */
function ownSteps(name) {
  return tables.steps.column(name).slice(0, index.firstSteps[rowsWith("episodes", "run", 0).length]);
}

function stepsOf(episode) {
  const first = index.firstSteps[episode];
  return Array.from({ length: index.firstSteps[episode + 1] - first }, (_, n) => first + n);
}

const FACING = ["up", "right", "down", "left"];

/** A state in words: where the agent is and what it is about, or else its fields. */
function stateLabel(state) {
  if (state == null) return "–";
  const scene = facts.picture && tables.states.row(state);
  if (scene && scene.agent) {
    const [x, y, heading] = scene.agent;
    return `(${x}, ${y})${heading == null ? "" : ` facing ${FACING[heading]}`}${scene.group ? `, ${scene.group}` : ""}`;
  }
  const fields = JSON.parse(tables.states.at("state", state));
  if (fields === null || typeof fields !== "object") return String(fields);
  const all = Object.entries(fields), filled = all.filter(([, value]) => !Array.isArray(value) || value.length);
  return (filled.length ? filled : all).map(([name, value]) => `${name} ${Array.isArray(value) ? value.join(" ") || "none" : value}`).join(", ");
}

function roundName(round) {
  if (round == null) return "–";
  return round === 0 ? "before" : `round ${round}`;
}

// --- numbers and texts ---------------------------------------------------------------------------

function number(value, digits = 4) {
  if (value == null || !Number.isFinite(value)) return "–";
  const text = Math.abs(value) >= 1e3 || Number.isInteger(value)
    ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

function percent(share, digits = 1) {
  return share == null || !Number.isFinite(share) ? "–" : `${(100 * share).toFixed(digits)} %`;
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

// What would not be seen, or would turn the text around it: controls, bidi marks, lone surrogates.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function escaped(letter) {
  const code = letter.charCodeAt(0);
  return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

function visible(text) {
  return String(text ?? "").replace(HIDDEN, escaped);
}

function clipped(text, most) {
  const shown = visible(String(text ?? "").slice(0, most)).replace(/\n/g, "⏎ ");
  return String(text ?? "").length > most ? `${shown}…` : shown;
}

/** Text letter for letter; of a very long one the beginning, until more is asked for. */
function Text({ text, most = 4000 }) {
  const [whole, showWhole] = useState(false);
  const length = String(text ?? "").length;
  const shown = whole || length <= most ? text : String(text).slice(0, most);
  return html`<bdi class="text">${visible(shown)}</bdi>${shown !== text && length > most && html`
    <button class="link" onClick=${() => showWhole(true)}>… show all ${number(length)} letters</button>`}`;
}

// --- colours -------------------------------------------------------------------------------------

const SERIES = ["#3b82c4", "#d9704f", "#3f9a5f", "#8b76b8", "#b8862b", "#3a9c9c", "#c2568f"];

function seriesColour(n, count = 0) {
  if (count <= SERIES.length) return SERIES[n % SERIES.length];
  return `hsl(${205 + (130 * n) / (count - 1)} 55% ${68 - (26 * n) / (count - 1)}%)`;
}

/** The colour of a share in [0, 1], from pale to deep; readable in light and dark. */
function shade(share) {
  const s = Math.min(1, Math.max(0, share));
  return `hsl(${212 - 8 * s} ${45 + 25 * s}% ${94 - 58 * s}%)`;
}

/** Red below zero, blue above, of a number in [−1, 1]. */
function diverging(share) {
  const s = Math.min(1, Math.max(-1, share));
  return s < 0 ? `hsl(12 ${70 * -s + 10}% ${95 - 42 * -s}%)` : `hsl(212 ${65 * s + 10}% ${95 - 45 * s}%)`;
}

/** Ink that can be read on a shade; the signed ones are never so deep that white is better. */
function inkOn(share, isSigned = false) {
  return !isSigned && share > 0.72 ? "#fff" : "#1c2733";
}
