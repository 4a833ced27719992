// Pairs: all of them by margin, the two answers side by side, and how many were dropped and why.

function marginOf(row) {
  return tables.pairs.at("margin", row);
}

/** What a pair was ranked by: advantages by the critic, or without one what its answers earned. */
function rankedBy(row) {
  return tables.pairs.at("chosen_advantage", row) == null ? "return" : "advantage";
}

/** Whether an answer of a pair was no chain: it moves nothing, or is known as such from the candidates. */
function isNoChain(row, kind) {
  return tables.pairs.at(`${kind}_way`, row)?.length === 0 || tables.candidates.at("invalid", rowsWith("candidates", "completion", tables.pairs.at(kind, row))[0]) === 1;
}

/** An answer from a little before where it differs from the other: long ones begin alike, and are cut at their ends. */
function fromDifference(row, kind, other) {
  const [text, beside] = [kind, other].map((name) => String(tables.pairs.at(name, row) ?? ""));
  let same = 0;
  while (same < text.length && text[same] === beside[same]) same += 1;
  return clipped(same > 12 ? `…${text.slice(same - 8)}` : text, 70);
}

function noChainPairs(run = "0") {
  return ofRun("pairs", run).filter((row) => isNoChain(row, "rejected") || isNoChain(row, "chosen"));
}

const PAIR_COLUMNS = [
  { name: "margin", label: "margin", number: true, show: (row) => number(marginOf(row)) },
  { name: "run", label: "run", wide: true, spare: true, show: (row) => clipped(facts.runs[tables.pairs.at("run", row)], 30) },
  { name: "round", label: "round", show: (row) => roundName(tables.pairs.at("round", row)) },
  { name: "state", label: "state", spare: true, show: (row) => (tables.pairs.at("state", row) == null ? "" : clipped(stateLabel(tables.pairs.at("state", row)), 40)) },
  { name: "chosen", label: "chosen", wide: true, show: (row) => fromDifference(row, "chosen", "rejected") },
  { name: "rejected", label: "rejected", wide: true, show: (row) => fromDifference(row, "rejected", "chosen") },
];

function PairsScreen({ wanted }) {
  const rounds = tables.pairs.values("round");
  const [run, setRun] = useKept("pairs run", "0");
  const [round, setRound] = useKept("pairs round", "all");
  const [text, setText] = useKept("pairs text", "");
  const [state, setState] = useKept("pairs state", null);
  const [noChain, setNoChain] = useKept("pairs no chain", false);
  const own = useMemo(() => ofRun("pairs", run), [run]);
  const without = useMemo(() => new Set(noChainPairs(run)), [run]);
  const [sort, setSort] = useKept("pairs sort", { name: "margin", down: true });
  const [chosen, choose] = useKept("pairs chosen", null);
  useEffect(() => { if (wanted) { setState(wanted.state ?? null); setRun(wanted.run ?? "0"); setRound(String(wanted.round ?? "all")); setNoChain(Boolean(wanted.noChain)); setText(""); } }, [wanted]);
  const rows = useMemo(() => {
    const fits = (value) => String(value ?? "").toLowerCase().includes(text.toLowerCase());
    const inText = text && ["prompt", "chosen", "rejected"].map((name) => tables.pairs.where(name, fits));
    const kept = [];
    for (const row of own) {
      if (round !== "all" && String(tables.pairs.at("round", row)) !== round) continue;
      if (state != null && tables.pairs.at("state", row) !== state) continue;
      if (noChain && !without.has(row)) continue;
      if (inText && !inText.some((column) => column[row])) continue;
      kept.push(row);
    }
    return sort ? sorted(kept, (row) => (sort.name === "margin" ? marginOf(row) : tables.pairs.at(sort.name, row)), sort.down) : kept;
  }, [run, round, text, state, noChain, sort]);
  if (!tables.pairs.length) return html`<${Empty}>No preference pairs lie in this folder.<//>`;
  const shown = chosen != null && rows.includes(chosen) ? chosen : rows[0];
  return html`<section class="screen" aria-label="pairs">
    <div class="filters">
      ${facts.runs.length > 1 && html`<${Choice} id="pair-run" label="run" value=${run} onChange=${setRun} options=${[["all", "all"], ...facts.runs.map((name, n) => [String(n), visible(name)])]} />`}
      <${Choice} id="pair-round" label="round" value=${round} onChange=${setRound} options=${[["all", "all"], ...rounds.map((r) => [String(r), roundName(r)])]} />
      <${Field} label="text" type="search" hint="in prompt and answers" value=${text} onInput=${setText} width="13em" />
      <${Toggle} label=${`no chain (${number(without.size)})`} on=${noChain} onChange=${setNoChain} title="pairs with an answer that was no chain" />
      ${state != null && html`<${Toggle} label=${`${clipped(stateLabel(state), 50)} ×`} on=${true} onChange=${() => setState(null)} />`}
      <span class="count" id="pair-count">${number(rows.length)} of ${number(own.length)}</span>
      <button class="link" onClick=${() => document.getElementById("dropped").scrollIntoView({ behavior: "smooth" })}>what was dropped</button>
      <${Csv} table="pairs" rows=${rows} />
    </div>
    <div class="split pairs">
      <${LongTable} label="table of pairs" columns=${PAIR_COLUMNS.filter(({ name }) => (name !== "run" || run === "all") && (name !== "state" || state == null))} rows=${rows} selected=${shown} onSelect=${choose} sort=${sort} onSort=${(name) => setSort({ name, down: sort?.name === name ? !sort.down : name === "margin" })} height=${480} />
      ${shown != null ? html`<${Pair} row=${shown} />` : html`<${Empty}>No pair fits these filters.<//>`}
    </div>
    <div class="charts"><${Histogram} title=${`margins of ${number(rows.length)} pairs`} values=${rows.map(marginOf)} xLabel=${`${[...new Set(rows.map(rankedBy))].join(" or ")} of chosen less that of rejected`} />
      <${Dropped} /></div>
  </section>`;
}

function Pair({ row }) {
  const pair = tables.pairs.row(row), scene = sceneOf(pair.state);
  const side = (kind) => html`<div class=${`side-of-pair ${kind}`}><h4 class=${kind === "chosen" ? "good" : "bad"}>${kind} <span class="number" title="what ranked it">${rankedBy(row)} ${signed(pair[`${kind}_${rankedBy(row)}`])}</span></h4>
    ${scene && scene.agent && html`<${Board} scene=${scene} agent=${scene.agent} ways=${pair[`${kind}_way`] ? [{ from: scene.agent, way: pair[`${kind}_way`], order: kind === "chosen" ? 0 : 1 }] : []} label=${`${kind} answer`} />`}
    <code class="completion"><${Text} text=${pair[kind]} /></code><p class="muted" title="what this one completion earned, its actions discounted as the critic discounts">discounted reward ${number(pair[`${kind}_return`])}${pair[`${kind}_logprob`] != null ? html` · <span title="of the whole answer, by the actor that this training began with">log-probability before ${number(pair[`${kind}_logprob`])}</span>` : ""}${pair[`${kind}_after`] != null ? html` · <span title="of the whole answer, by the actor that this training ended with; kept of the first pairs">after ${number(pair[`${kind}_after`])}</span>` : ""}${isNoChain(row, kind) ? " · no chain" : ""}</p></div>`;
  return html`<div class="detail"><header><b>${facts.runs.length > 1 ? `${visible(facts.runs[pair.run])}, ` : ""}${roundName(pair.round)}</b> · margin <b>${number(marginOf(row))}</b>${pair.state != null && html` · <${Go} to="states" with=${{ state: pair.state }}>this state in every round<//>`}</header>
    <pre class="prompt"><${Text} text=${pair.prompt} most=${1500} /></pre><div class="two">${side("chosen")}${side("rejected")}</div></div>`;
}

/** Pairs made and dropped, round by round, each reason in words. */
function Dropped() {
  const stages = [...new Set([...rowsWith("pairs", "run", 0).map((row) => tables.pairs.at("stage", row)), ...tables.dropped.values("stage")])].sort(naturally);
  const reasons = tables.dropped.values("reason");
  const count = (stage, reason) => tables.dropped.column("stage").reduce((sum, s, row) => sum + (s === stage && tables.dropped.at("reason", row) === reason ? tables.dropped.at("count", row) : 0), 0);
  const total = (stage) => tables.dropped.column("stage").reduce((sum, s, row) => sum + (s === stage ? tables.dropped.at("count", row) : 0), 0);
  const made = (stage) => rowsWith("pairs", "stage", stage).filter((row) => tables.pairs.at("run", row) === 0).length;
  return html`<figure class="chart wide"><figcaption>draws of a start state that gave no pair, and why${facts.runs.length > 1 ? `; of ${visible(facts.runs[0])}` : ""}</figcaption>
    <table id="dropped"><thead><tr><th></th>${stages.map((s) => html`<th class="number">${roundName(tables.pairs.at("round", rowsWith("pairs", "stage", s)[0] ?? 0))}</th>`)}</tr></thead>
    <tbody><tr><th>pairs</th>${stages.map((s) => html`<td class="number">${number(made(s))}</td>`)}</tr>
      ${reasons.length > 0 && html`<tr><th>dropped, of all draws</th>${stages.map((s) => html`<td class="number"><b>${number(total(s))}</b> (${percent(total(s) / (total(s) + made(s)))})</td>`)}</tr>`}
      ${reasons.map((reason) => html`<tr><th>${facts.reasons[reason] || reason}</th>${stages.map((s) => html`<td class="number">${number(count(s, reason))}</td>`)}</tr>`)}
      ${!reasons.length && html`<tr><td colspan=${stages.length + 1} class="muted">none was dropped, or the run did not count</td></tr>`}</tbody></table></figure>`;
}
