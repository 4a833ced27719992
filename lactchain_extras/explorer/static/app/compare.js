// Compare: two sides, each a round of a run, start state by start state; what changed most first.

/** Start states that have to differ before luck is excluded, as in `comparing.FEWEST`. */
const FEWEST = 6;

/** The sides that there are: the rounds of each run that were evaluated, and how they went. */
function sidesOf() {
  const { results } = tables, found = new Map();
  for (let row = 0; row < results.length; row++) {
    const { run, round, state, success, num_chains: chains } = results.row(row), id = `${run} ${round}`;
    if (state == null || success == null) continue;
    if (!found.has(id)) found.set(id, { id, run, round, states: new Map() });
    const { states } = found.get(id), known = states.get(state) || { success: 0, chains: 0, times: 0 };
    states.set(state, { success: known.success + success, chains: known.chains + chains, times: known.times + 1 });
  }
  for (const { states } of found.values()) states.forEach((known) => { known.success /= known.times; known.chains /= known.times; });
  return [...found.values()].sort((a, b) => a.run - b.run || a.round - b.round);
}

function sideName({ run, round }) {
  const name = facts.runs.length > 1 ? visible(facts.runs[run]) : "";
  return [name, round == null ? "" : roundName(round)].filter(Boolean).join(", ") || "this run";
}

/** What is compared at first: the results of this run and of the next; of one run alone, what it began and ended with. */
function firstSides(sides) {
  const result = (run) => sides.find((side) => side.run === run && side.round === facts.chosen[run]);
  const last = result(0) || sides.at(-1);
  return result(1) ? [last.id, result(1).id] : [sides[0].id, last.id];
}

/** The mean of differences, and where it lies with 95 %, by the normal approximation. */
function pairedInterval(differences) {
  const middle = mean(differences), spread = Math.sqrt(differences.reduce((sum, d) => sum + (d - middle) ** 2, 0) / (differences.length - 1));
  const half = (1.959964 * spread) / Math.sqrt(differences.length);
  return [middle, middle - half, middle + half];
}

function Difference({ label, id, values, better }) {
  if (values.every((d) => d === 0)) return html`<p id=${id}>${label}: none of ${number(values.length)} differs</p>`;
  const [middle, low, high] = pairedInterval(values);
  const verdict = (low > 0 || high < 0) && values.filter((d) => d !== 0).length >= FEWEST ? ((low > 0) === better ? "better" : "worse") : "may be luck";
  return html`<p id=${id}>${label}: <b>${signed(middle)}</b> (95 %: ${signed(low)} to ${signed(high)}), <b class=${{ better: "good", worse: "bad" }[verdict] || ""}>${verdict}</b></p>`;
}

const CHANGES = {
  all: ["all", () => true],
  differ: ["differ", (a, b) => a.success !== b.success || a.chains !== b.chains],
  gained: ["gained", (a, b) => b.success > a.success],
  lost: ["lost", (a, b) => b.success < a.success],
  sooner: ["solved by both, in fewer", (a, b) => a.success === 1 && b.success === 1 && b.chains < a.chains],
  later: ["solved by both, in more", (a, b) => a.success === 1 && b.success === 1 && b.chains > a.chains],
  failed: ["solved by neither", (a, b) => !a.success && !b.success],
};

function CompareScreen({ wanted }) {
  const sides = useMemo(sidesOf, []);
  const [ids, setIds] = useKept("compare sides", wanted?.sides || (sides.length > 1 ? firstSides(sides) : []));
  const [change, setChange] = useKept("compare change", wanted?.change || "differ");
  const [text, setText] = useKept("compare text", "");
  const [sort, setSort] = useKept("compare sort", null);
  const [state, choose] = useKept("compare state", wanted?.state ?? null);
  useLayoutEffect(() => told("compare", { sides: ids, change, state }), [ids, change, state]);
  const pair = ids.map((id) => sides.find((side) => side.id === id));
  const rows = useMemo(() => {
    if (pair.length < 2 || !pair[0] || !pair[1]) return [];
    const [a, b] = pair.map(({ states }) => states), fits = CHANGES[change][1];
    const common = [...a.keys()].filter((s) => b.has(s) && fits(a.get(s), b.get(s)) && stateLabel(s).toLowerCase().includes(text.toLowerCase()));
    const weight = (s) => Math.abs(b.get(s).success - a.get(s).success) * 1e6 + Math.abs(b.get(s).chains - a.get(s).chains);
    return sort ? sorted(common, (s) => columnsOf(pair).find(({ name }) => name === sort.name).value(s), sort.down) : common.sort((s, t) => weight(t) - weight(s));
  }, [ids, change, text, sort]);
  const set = (place) => (id) => setIds(ids.map((old, n) => (n === place ? id : old)));
  const options = sides.map((side) => [side.id, sideName(side)]);
  const shown = rows.includes(state) ? state : rows[0];
  return html`<section class="screen" aria-label="compare">
    ${facts.runs.length > 1 && html`<${Runs} sides=${sides} />`}
    ${rows.length || pair[0] ? html`<div class="filters">
      <${Choice} id="side-a" label="from" value=${ids[0]} onChange=${set(0)} options=${options} />
      <${Choice} id="side-b" label="to" value=${ids[1]} onChange=${set(1)} options=${options} />
      <button class="link" onClick=${() => setIds([ids[1], ids[0]])}>turn around</button>
      <${Choice} id="compare-change" label="start states that" value=${change} onChange=${setChange} options=${Object.entries(CHANGES).map(([key, [name]]) => [key, name])} />
      <${Field} label="find" type="search" hint="a start state" value=${text} onInput=${setText} />
      <span class="count" id="compare-count">${number(rows.length)} start states</span>
      <${Csv} table="compared" columns=${columnsOf(pair).map(({ name, title, value }) => [title || name, value])} rows=${rows} />
    </div>
    <${Verdict} pair=${pair} />
    ${facts.left_out && html`<p class="muted">${facts.left_out}</p>`}
    <div class="split compare">
      <${LongTable} label="start states" columns=${columnsOf(pair)} rows=${rows} selected=${shown} onSelect=${choose} sort=${sort} height=${560}
        onSort=${(name) => setSort(sort && sort.name === name ? (sort.down ? null : { name, down: true }) : { name, down: false })} />
      ${shown != null ? html`<${Together} key=${`${ids} ${shown}`} state=${shown} pair=${pair} />` : html`<${Empty}>No start state is so.<//>`}
    </div>` : html`<${Empty}>Fewer than two evaluations here tell of success.<//>`}
    ${facts.settings.length > 0 && html`<${Settings} />`}
  </section>`;
}

function columnsOf(pair) {
  if (!pair[0] || !pair[1]) return [];
  const known = (place, s) => pair[place].states.get(s);
  const outcome = (place) => (s) => { const { success } = known(place, s); return html`<${Outcome} outcome=${success === 1 ? "solved" : success ? percent(success, 0) : "failed"} />`; };
  const columns = [
    { name: "state", label: "start state", wide: true, value: stateLabel, show: (s) => clipped(stateLabel(s), 60) },
    { name: "a", label: "from", title: sideName(pair[0]), value: (s) => known(0, s).success, show: outcome(0) },
    { name: "b", label: "to", title: sideName(pair[1]), value: (s) => known(1, s).success, show: outcome(1) },
    { name: "ca", label: "compl.", title: `completions, ${sideName(pair[0])}`, number: true, value: (s) => known(0, s).chains },
    { name: "cb", label: "to", title: `completions, ${sideName(pair[1])}`, number: true, value: (s) => known(1, s).chains },
  ];
  return columns.map((column) => ({ show: (s) => number(column.value(s)), ...column }));
}

/** What the second side has gained, lost, and whether that may be luck. */
function Verdict({ pair: [a, b] }) {
  const common = [...a.states.keys()].filter((s) => b.states.has(s));
  if (common.length < 2) return html`<p class="empty">These two have ${common.length} start states in common.</p>`;
  const changed = (what) => common.map((s) => b.states.get(s)[what] - a.states.get(s)[what]);
  const successes = changed("success"), count = (sign) => successes.filter((d) => sign * d > 0).length;
  return html`<div id="verdict"><p>Of ${number(common.length)} start states in common <b>${sideName(b)}</b> gains ${number(count(1))} beside <b>${sideName(a)}</b> and loses ${number(count(-1))}.</p>
    <${Difference} id="verdict-success" label="success" values=${successes} better=${true} />
    <${Difference} id="verdict-chains" label="completions of an episode" values=${changed("chains")} better=${false} /></div>`;
}

/** Both episodes from a start state, stepped together. */
function Together({ state, pair }) {
  const episodes = pair.map(({ run, round }) => evaluationFrom(state, round, run));
  const lengths = episodes.map((episode) => (episode == null ? 0 : stepsOf(episode).length)), most = Math.max(1, ...lengths);
  const [step, setStep] = useState(0);
  const jump = (n) => setStep(Math.min(most - 1, Math.max(0, n)));
  const keys = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by && event.target.tagName !== "INPUT") { event.preventDefault(); jump(step + by); }
  };
  return html`<div class="detail" tabindex="0" onKeyDown=${keys} role="region" aria-label="both episodes, step by step">
    <header><b>${stateLabel(state)}</b> · <${Go} to="states" with=${{ state }}>its answers in every round<//>${rowsWith("pairs", "state", state).length > 0 && html` · <${Go} to="pairs" with=${{ state, run: "all" }}>its pairs<//>`} · <${Go} to="episodes" with=${{ filter: { run: "all", start: String(state) } }}>all episodes from here<//></header>
    <div class="two">${pair.map((side, n) => html`<section class="side" aria-label=${n ? "to" : "from"}><h4>${sideName(side)}</h4><${Side} episode=${episodes[n]} step=${step} /></section>`)}</div>
    <div class="controls"><button aria-label="completion before" onClick=${() => jump(step - 1)}>‹</button><button aria-label="next completion" onClick=${() => jump(step + 1)}>›</button>
      <input type="range" aria-label="completion" min="0" max=${most - 1} value=${step} onInput=${(event) => jump(Number(event.target.value))} /><span class="muted">${step + 1} / ${most}</span></div>
    <${SaidFrom} state=${state} pair=${pair} />
  </div>`;
}

/** What each side might say from a start state, a completion a row; what either says most comes first. */
function SaidFrom({ state, pair }) {
  const sides = pair.map(({ run, round }) => new Map(candidatesFrom(state, round, run).map((c) => [c.completion, c])));
  const most = (text) => Math.max(...sides.map((side) => side.get(text)?.probability ?? (side.has(text) ? 0 : -1)));
  const [shown, more] = useMore([...new Set(sides.flatMap((side) => [...side.keys()]))].sort((a, b) => most(b) - most(a)), 12);
  if (!shown.length) return null;
  const worth = sides.map((side) => ([...side.values()].some(({ q }) => q != null) ? "q" : "reward"));
  const cells = (c, n) => (c ? html`<td class="number">${c.times ? number(c.probability, 3) : html`<span title="it was not sampled freely: how likely it is, is not known">drawn</span>`}</td><td class="number">${number(c[worth[n]])}${c.chosen ? html` <b class="good" title="chosen in a pair">+</b>` : c.rejected ? html` <b class="bad" title="rejected in a pair">−</b>` : ""}</td>` : html`<td class="number muted">–</td><td></td>`);
  return html`<h3>What else each might say here <span class="muted">Q is by its own critic; + chosen, − rejected in a pair</span></h3>
    ${sides.map((side, n) => !side.size && html`<p class="muted">This page holds no candidates of ${sideName(pair[n])} from here.</p>`)}
    <div class="scroll"><table id="said"><thead><tr><th>completion</th>${pair.map((side) => html`<th class="number" colspan="2"><${Text} text=${sideName(side)} /></th>`)}</tr><tr><th></th>${worth.map((what) => html`<th class="number">probability</th><th class="number">${what === "q" ? "Q" : what}</th>`)}</tr></thead>
      <tbody>${shown.map((text) => html`<tr><td><code class=${`completion ${sides.some((side) => side.get(text)?.invalid) ? "invalid" : ""}`}><${Text} text=${text} most=${400} /></code></td>${sides.map((side, n) => cells(side.get(text), n))}</tr>`)}</tbody></table></div>${more}`;
}

function Side({ episode, step }) {
  if (episode == null) return html`<p class="muted">This page does not hold the episode.</p>`;
  const steps = stepsOf(episode), at = Math.min(step, steps.length - 1), row = tables.episodes.row(episode);
  const over = step >= steps.length - 1;
  return html`${!sceneOf(tables.steps.at("state", steps[at])) && html`<pre class="prompt"><${Text} text=${tables.steps.at("prompt", steps[at])} /></pre>`}
    <${EpisodeBoard} episode=${episode} steps=${steps} step=${at} position=${(tables.steps.at("way", steps[at]) || []).length} />
    <p>completion ${at + 1} of ${steps.length}${over && html`: <${Outcome} outcome=${row.outcome} />, return ${number(row.episode_return)}`}</p>
    <${StepLine} step=${steps[at]} /><${Rewards} step=${steps[at]} />`;
}

/** The runs, a row each: how far they came, and in each round. */
function Runs({ sides }) {
  const rounds = tables.results.values("round");
  const rates = useMemo(() => new Map(sides.map(({ id, states }) => [id, `${percent(mean([...states.values()].map(({ success }) => success)))} of ${number(states.size)}`])), [sides]);
  return html`<div class="scroll"><table id="runs"><thead><tr><th>run</th>${facts.compared.map(([name]) => html`<th class="number">${name}</th>`)}${rounds.map((r) => html`<th class="number">${roundName(r)}</th>`)}</tr></thead>
    <tbody>${facts.runs.map((name, run) => html`<tr><th><${Text} text=${name} /></th>${facts.compared.map(([figure, values]) => html`<td class="number">${figure === "success" ? percent(values[run]) : number(values[run])}</td>`)}${rounds.map((r) => html`<td class="number">${rates.get(`${run} ${r}`) || "–"}</td>`)}</tr>`)}</tbody></table></div>`;
}

function Settings() {
  const names = Object.keys(facts.settings[0]);
  return html`<details id="settings"><summary>${number(facts.settings.length)} ${facts.settings.length === 1 ? "setting differs" : "settings differ"}</summary><div class="scroll"><table><thead><tr>${names.map((name) => html`<th><${Text} text=${name} /></th>`)}</tr></thead>
    <tbody>${facts.settings.map((row) => html`<tr>${names.map((name) => html`<td><${Text} text=${row[name]} /></td>`)}</tr>`)}</tbody></table></div></details>`;
}
