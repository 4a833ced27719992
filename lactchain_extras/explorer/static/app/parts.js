// Pieces that several screens share: long tables, filters, completions, links.

const ROW_HEIGHT = 28;

/** A table of any length: only the rows in sight are drawn. Arrow keys move, Enter opens. */
function LongTable({ columns, rows, selected, onSelect, sort, onSort, label, height = 460 }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - 6);
  const last = Math.min(rows.length, first + Math.ceil(height / ROW_HEIGHT) + 12);
  const place = rows.indexOf(selected);
  const move = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -rows.length, End: rows.length };
    if (event.key === "Enter" && event.target === box.current) { event.preventDefault(); box.current.parentElement.querySelector(".player, .detail")?.focus(); }
    if (!(event.key in steps) || !rows.length) return;
    event.preventDefault();
    const next = Math.min(rows.length - 1, Math.max(0, place + steps[event.key]));
    onSelect(rows[next]);
    const wanted = next * ROW_HEIGHT;
    const view = box.current;
    if (wanted < view.scrollTop) view.scrollTop = wanted;
    if (wanted > view.scrollTop + height - 3 * ROW_HEIGHT) view.scrollTop = wanted - height + 3 * ROW_HEIGHT;
  };
  useEffect(() => { box.current.scrollTop = 0; }, [rows]);
  return html`<div class="longtable" ref=${box} style=${{ height: `${Math.min(height, (rows.length + 1) * ROW_HEIGHT + 18)}px` }}
      tabindex="0" role="region" aria-label=${label} onScroll=${(event) => setTop(event.currentTarget.scrollTop)} onKeyDown=${move}>
    <table aria-rowcount=${rows.length}>
      <thead><tr>${columns.map((column) => html`<th class=${cellClass(column)} aria-sort=${sort && sort.name === column.name ? (sort.down ? "descending" : "ascending") : undefined}>
        <button class="plain" title=${column.title || `sort by ${column.label}`} onClick=${() => onSort && onSort(column.name)}>${column.label}${sort && sort.name === column.name ? (sort.down ? " ↓" : " ↑") : ""}</button></th>`)}</tr></thead>
      <tbody>
        ${first > 0 && html`<tr class="space" style=${{ height: `${first * ROW_HEIGHT}px` }} />`}
        ${rows.slice(first, last).map((row) => html`<tr key=${row} class=${row === selected ? "selected" : ""} aria-selected=${row === selected} onClick=${() => onSelect(row)}>
          ${columns.map((column) => html`<td class=${cellClass(column)}>${column.show(row)}</td>`)}</tr>`)}
        ${last < rows.length && html`<tr class="space" style=${{ height: `${(rows.length - last) * ROW_HEIGHT}px` }} />`}
      </tbody>
    </table>
  </div>`;
}

/** A column is of numbers, or takes what room there is; a spare one is left out of a narrow page. */
function cellClass({ number: isNumber, wide, spare }) {
  return [isNumber && "number", wide && "wide", spare && "spare"].filter(Boolean).join(" ");
}

/** Rows in the order of a column; equal ones as they were. */
function sorted(rows, value, down) {
  const keyed = rows.map((row) => [value(row), row]);
  const sign = down ? -1 : 1;
  const order = (a, b) => (a == null) - (b == null) || sign * (typeof a === "number" && typeof b === "number" ? a - b : naturally(a, b));
  return keyed.sort(([a], [b]) => order(a, b)).map(([, row]) => row);
}

function Choice({ label, value, options, onChange, id }) {
  return html`<label class="field"><span>${label}</span>
    <select id=${id} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, name]) => html`<option value=${key} selected=${String(key) === String(value)}>${name}</option>`)}
    </select></label>`;
}

function Field({ label, value, onInput, type = "text", width = "9em", hint = "" }) {
  return html`<label class="field"><span>${label}</span>
    <input type=${type} value=${value} placeholder=${hint} style=${{ width }} step="any" onInput=${(event) => onInput(event.target.value)} /></label>`;
}

function Toggle({ label, on, onChange, title }) {
  return html`<button class=${`chip ${on ? "on" : ""}`} aria-pressed=${on} title=${title} onClick=${() => onChange(!on)}>${label}</button>`;
}

/** Rounds as a slider; the name of the chosen one stands beside it. */
function Rounds({ rounds, value, onChange, id }) {
  if (rounds.length < 2) return null;
  const place = Math.max(0, rounds.indexOf(value));
  return html`<label class="field rounds"><span>round</span>
    <input id=${id} type="range" min="0" max=${rounds.length - 1} step="1" value=${place} aria-valuetext=${roundName(rounds[place])}
      onInput=${(event) => onChange(rounds[Number(event.target.value)])} /><b>${roundName(rounds[place])}</b></label>`;
}

/** A completion, each token shaded by its probability: the less likely, the warmer. */
function Tokens({ text, tokens, probabilities, invalid }) {
  if (!tokens || !tokens.length || !probabilities || tokens.length !== probabilities.length || String(text ?? "").length > 20000) {
    return html`<code class=${`completion ${invalid ? "invalid" : ""}`}><${Text} text=${text} />${!text && html`<i class="muted">(nothing)</i>`}</code>`;
  }
  return html`<code class=${`completion ${invalid ? "invalid" : ""}`}>${tokens.map((token, n) => {
    const p = probabilities[n];
    return html`<span class="token" style=${{ background: warm(1 - p) }} title=${`probability ${p.toFixed(3)}`}><bdi>${visible(token)}</bdi></span>`;
  })}</code>`;
}

function warm(doubt) {
  return doubt < 0.02 ? "transparent" : `hsl(28 90% 55% / ${Math.min(0.75, 0.1 + 0.75 * doubt).toFixed(3)})`;
}

const kept = new Map();

/** State that a screen finds again when one comes back to it; the tabs count by it. */
function useKept(name, initial) {
  const [value, setValue] = useState(() => (kept.has(name) ? kept.get(name) : initial));
  return [value, (next) => { kept.set(name, next); setValue(next); recount(); }];
}

/** The first of some rows, and a button that shows the others as well. */
function useMore(rows, most = 10) {
  const [whole, showWhole] = useState(false);
  const button = rows.length > most && !whole && html`<button class="link" onClick=${() => showWhole(true)}>${number(rows.length - most)} more</button>`;
  return [whole ? rows : rows.slice(0, most), button];
}

/** Number with a name under it. */
function Figure({ label, value, title }) {
  return html`<div class="figure" title=${title}><b>${value}</b><span>${label}</span></div>`;
}

function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

function Outcome({ outcome, good = outcome === "solved" }) {
  return html`<span class=${`outcome ${good ? "good" : "bad"}`}>${outcome}</span>`;
}

/** A button that leads to another screen. */
function Go({ to, with: wanted, children }) {
  return html`<button class="link" onClick=${() => go(to, wanted)}>${children}</button>`;
}

/** A link that saves rows of a table, with all its columns or those given, as a file that spreadsheets read. */
function Csv({ table, rows, columns }) {
  const save = () => {
    const told = columns || Object.keys(tables[table].columns).map((name) => [name, (row) => tables[table].at(name, row)]), cell = (value) => `"${(typeof value === "string" ? value : JSON.stringify(value ?? null)).replaceAll('"', '""')}"`;
    const lines = [told.map(([name]) => name), ...rows.map((row) => told.map(([, value]) => value(row)))].map((line) => line.map((value) => (value == null ? "" : cell(value))).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    link.download = `${table}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return html`<button class="link" title=${`these ${number(rows.length)} rows, all columns`} onClick=${save}>CSV</button>`;
}
