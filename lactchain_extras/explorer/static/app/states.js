// States: what the actor answers from a start state, round by round, and what that is worth.

const METRICS = {
  success: ["success", (row) => wentFrom(row).rate, [0, 1]],
  completions: ["completions needed", (row) => wentFrom(row).completions],
  change: ["return: change since the round before", (row) => changeOf(row)],
  return: ["return", (row) => answer("return", row)],
  value: ["V of the critic", (row) => answer("value", row)],
  optimal: ["V* exact", (row) => answer("optimal", row)],
  policy_value: ["Vπ exact", (row) => answer("policy_value", row)],
  error: ["error: V − exact", (row) => errorOf(row)],
  advantage: ["advantage of the answer", (row) => answer("advantage", row)],
  probability: ["probability of the answer", (row) => answer("probability", row)],
};

function answer(name, row) {
  return tables.answers.at(name, row);
}

/** How much more the episode earned than in the round before. */
function changeOf(row) {
  const before = answer("round", row) == null ? undefined : answerOf(answer("state", row), answer("round", row) - 1);
  return before == null ? null : answer("return", row) - answer("return", before);
}

/** What differs between start states: success, or else the first that does in this round. */
function telling(metrics, round) {
  const rows = rowsWith("answers", "round", round);
  const found = ["success", "completions", "return"].find((name) => metrics.some(([known]) => known === name) && new Set(rows.map(METRICS[name][1])).size > 1);
  return found || "success";
}

/** The first round in which every start state was solved, in words; empty where there was none. */
function allSolved(rounds) {
  const first = rounds.find((round) => rowsWith("answers", "round", round).every((row) => wentFrom(row).rate === 1));
  if (first == null) return "";
  const count = rowsWith("answers", "round", first).length;
  return `${count === 1 ? "It was" : `All ${number(count)} were`} solved in ${first === 0 ? "the evaluation before any round" : roundName(first)}.`;
}

/** The critic's error: against the value of the policy that it judges, else the best one's. */
function errorOf(row) {
  const value = answer("value", row), { exact } = exactOf("answers", row);
  return value == null || exact == null ? null : value - exact;
}

/** What the error of a round is against; the rounds of a run may differ in it. */
function metricName(metric, rows) {
  if (metric !== "error") return METRICS[metric][0];
  return `error: V − ${[...new Set(rows.filter((row) => errorOf(row) != null).map((row) => exactOf("answers", row).reference))].join(" or ") || "exact"}`;
}

function knownMetrics() {
  return Object.entries(METRICS).filter(([, [, value]]) => tables.answers.column("state").some((_, row) => value(row) != null));
}

function StatesScreen({ wanted }) {
  const rounds = useMemo(() => tables.answers.values("round"), []);
  const metrics = useMemo(knownMetrics, []);
  const asked = useMemo(() => [...new Set(tables.answers.column("state"))].filter((state) => state != null), []);
  const groups = useMemo(() => [...new Set(asked.map((state) => groupOf(state)))].sort(naturally), []);
  const [round, setRound] = useKept("states round", rounds[rounds.length - 1]);
  const [metric, setMetric] = useKept("states metric", useMemo(() => telling(metrics, rounds[rounds.length - 1]), []));
  const [state, choose] = useKept("states state", useMemo(() => worstState(asked, rounds), []));
  const [group, setGroup] = useState(groupOf(state) ?? groups[0]);
  const take = (next) => { choose(next); setGroup(groupOf(next)); };
  useEffect(() => { if (wanted?.state != null) take(wanted.state); if (wanted?.metric) setMetric(wanted.metric); if (wanted?.round != null) setRound(wanted.round); }, [wanted]);
  useLayoutEffect(() => { if (state != null) told("states", { state, round, metric }); }, [state, round, metric]);
  if (!asked.length) return html`<${Empty}>No answers to start states lie in this folder yet: an evaluation leaves them.<//>`;
  const drawn = sceneOf(asked[0]) && sceneOf(asked[0]).agent;
  return html`<section class="screen" aria-label="states">
    <div class="filters">
      ${drawn && html`<${Choice} id="state-metric" label="colour" value=${metric} onChange=${setMetric} options=${metrics.map(([key]) => [key, metricName(key, rowsWith("answers", "round", round))])} />`}
      <${Rounds} id="state-round" rounds=${rounds} value=${round} onChange=${setRound} />
      ${!drawn && html`<${StateList} asked=${asked} state=${state} onChange=${take} round=${round} />`}
      <span class="muted" id="all-solved">${allSolved(rounds)}</span>
      ${facts.asked && html`<span class="muted">${facts.asked}</span>`}
    </div>
    <p class="muted words">${facts.words}</p>
    <div class=${drawn ? "split map" : ""}>
      ${drawn && html`<div><${StateMap} asked=${asked} groups=${groups} group=${group} setGroup=${setGroup} state=${state} choose=${take} metric=${metric} round=${round} /></div>`}
      <${StateDetail} key=${state} state=${state} rounds=${rounds} round=${round} />
    </div>
    <${NoChains} open=${Boolean(wanted?.noChains)} />
  </section>`;
}

function groupOf(state) {
  const scene = sceneOf(state);
  return scene ? scene.group : "";
}

/** The one that fails most, in the latest round in which any does. */
function worstState(asked, rounds) {
  for (const round of rounds.slice().reverse()) {
    const rate = (row) => wentFrom(row).rate ?? 0, [failed] = sorted(rowsWith("answers", "round", round), rate);
    if (failed != null && rate(failed) < 1) return answer("state", failed);
  }
  return asked[0];
}

function answerOf(state, round) {
  return rowsWith("answers", "state", state).find((row) => answer("round", row) === round);
}

function StateList({ asked, state, onChange, round }) {
  const [text, setText] = useState("");
  const found = asked.filter((s) => `${stateLabel(s)}`.toLowerCase().includes(text.toLowerCase()));
  return html`<${Field} label="find" type="search" hint="a state" value=${text} onInput=${setText} />
    <${Choice} id="state-list" label="state" value=${state} onChange=${(value) => onChange(Number(value))}
      options=${found.slice(0, 500).map((s) => { const row = answerOf(s, round); return [s, `${row != null && !wentFrom(row).rate ? "✗ " : ""}${clipped(stateLabel(s), 70)}`]; })} />
    <span class="count">${number(found.length)} of ${number(asked.length)}</span>`;
}

/** A map of start states: one colour each; where goals differ, the goal is chosen first. */
function StateMap({ asked, groups, group, setGroup, state, choose, metric, round }) {
  const [, value, fixed] = METRICS[metric];
  const rows = rowsWith("answers", "round", round), name = metricName(metric, rows);
  const values = useMemo(() => new Map(rows.map((row) => [answer("state", row), value(row)])), [metric, round]);
  const all = useMemo(() => tables.answers.column("state").map((_, row) => value(row)).filter((v) => v != null), [metric]);
  const [low, high] = fixed || range(all.length ? all : [0, 1], 0);
  const biggest = all.reduce((most, v) => Math.max(most, Math.abs(v)), 1e-9);
  const signedMetric = ["error", "advantage", "change"].includes(metric);
  const share = (v) => (signedMetric ? v / biggest : high > low ? (v - low) / (high - low) : 0.5);
  const here = asked.filter((s) => groupOf(s) === group && sceneOf(s)?.agent);
  const heat = here.map((s) => {
    const [x, y, heading] = sceneOf(s).agent, v = values.get(s);
    return { x, y, heading, state: s, chosen: s === state, fill: v == null ? "transparent" : signedMetric ? diverging(share(v)) : shade(share(v)),
      ink: v == null ? "" : inkOn(share(v), signedMetric), text: heading == null && v != null ? String(Number(v.toFixed(2))) : "", hint: `${stateLabel(s)}: ${name} ${number(v)}` };
  });
  const chosen = sceneOf(state);
  const marks = here.length ? sceneOf(here[0]).marks : [];
  return html`${groups.length > 1 && html`<${GroupPicker} asked=${asked} groups=${groups} group=${group} values=${values} setGroup=${(next) => {
      setGroup(next);
      const same = asked.find((s) => groupOf(s) === next && chosen?.agent && String(sceneOf(s).agent) === String(chosen.agent));
      choose(same ?? asked.find((s) => groupOf(s) === next));
    }} share=${share} signedMetric=${signedMetric} />`}
    <${Board} scene=${{ marks }} heat=${heat} axes=${true} onCell=${(place) => choose(place.state)} label=${`${name} of start states, ${group}`} />
    <${Scale} low=${signedMetric ? -biggest : low} high=${signedMetric ? biggest : high} signedMetric=${signedMetric} name=${`${name}, one scale for all rounds`} />
    <p class="muted">Click a cell${heat[0]?.heading != null ? "’s side: the direction that the agent faces" : ""}. ${number(here.length)} start states here.</p>`;
}

/** Goals as a small map where each has its cell, else a list. */
function GroupPicker({ asked, groups, group, values, setGroup, share, signedMetric }) {
  const places = groups.map((name) => {
    const states = asked.filter((s) => groupOf(s) === name), goal = sceneOf(states[0])?.marks.find((mark) => mark[2] === "goal");
    const known = states.map((s) => values.get(s)).filter((v) => v != null);
    return { name, goal, mean: known.length ? known.reduce((a, b) => a + b, 0) / known.length : null };
  });
  const cells = new Set(places.map(({ goal }) => goal && `${goal[0]},${goal[1]}`));
  if (cells.size < groups.length || cells.has(undefined)) return html`<${Choice} id="state-group" label="task" value=${group} onChange=${setGroup} options=${places.map(({ name, mean }) => [name, `${name} (${number(mean, 3)})`])} />`;
  const heat = places.map(({ name, goal, mean }) => ({ x: goal[0], y: goal[1], name, chosen: name === group, hint: `${name}: mean ${number(mean)}`,
    fill: mean == null ? "transparent" : signedMetric ? diverging(share(mean)) : shade(share(mean)), ink: mean == null ? "" : inkOn(share(mean), signedMetric), text: mean == null ? "" : String(Number(mean.toFixed(2))) }));
  return html`<div class="goals"><${Board} heat=${heat} onCell=${({ name }) => setGroup(name)} label="goals" /><p class="muted">Choose the goal; the number is the mean over its start states.</p></div>`;
}

function Scale({ low, high, signedMetric, name }) {
  const stops = Array.from({ length: 9 }, (_, n) => (signedMetric ? diverging(n / 4 - 1) : shade(n / 8)));
  return html`<div class="scale"><span>${number(low, 3)}</span><i style=${{ background: `linear-gradient(90deg, ${stops.join(",")})` }} /><span>${number(high, 3)}</span><span class="muted">${name}</span></div>`;
}

/** One start state: its answer in every round, and what else might be said. */
function StateDetail({ state, rounds, round }) {
  return html`<div class="detail">
    <header><b>${stateLabel(state)}</b>${answerOf(state, round) != null && answer("text", answerOf(state, round)) != null && html`<pre class="prompt"><${Text} text=${answer("text", answerOf(state, round))} most=${1500} /></pre>`}
      <${Go} to="episodes" with=${{ filter: { start: String(state) } }}>its episodes<//>${rowsWith("pairs", "state", state).some((row) => tables.pairs.at("run", row) === 0) && html` · <${Go} to="pairs" with=${{ state }}>its pairs<//>`}</header>
    <div class="answers">${rounds.map((r) => html`<${AnswerCard} key=${r} state=${state} round=${r} now=${r === round} />`)}</div>
    <${Candidates} state=${state} round=${round} />
  </div>`;
}

function AnswerCard({ state, round, now }) {
  const row = answerOf(state, round);
  if (row == null) return html`<article class="answer"><h4>${roundName(round)}</h4><p class="muted">not asked</p></article>`;
  const a = tables.answers.row(row), scene = sceneOf(state);
  const episode = evaluationFrom(state, round), { of, rate, completions: needed } = wentFrom(row), several = of > 1;
  const outcome = several ? `${number(Math.round(rate * of))} of ${number(of)} solved` : rate === 1 ? "solved" : "not solved";
  const went = html`<div class="whole"><dt>${rate == null ? "" : html`<${Outcome} outcome=${outcome} good=${rate === 1} />`}</dt><dd>${needed == null ? "" : `in ${number(needed, 3)} completion${needed === 1 ? "" : "s"}`}</dd></div>`;
  return html`<article class=${`answer ${now ? "now" : ""}`} aria-label=${`answer of ${roundName(round)}`}>
    <h4>${roundName(round)}</h4>
    ${scene?.agent && html`<${Board} scene=${scene} agent=${scene.agent} ways=${a.way ? [{ from: scene.agent, way: a.way, order: 0 }] : []} label=${`where the answer of ${roundName(round)} leads`} />`}
    <${Tokens} text=${a.completion} tokens=${a.tokens} probabilities=${a.probabilities} invalid=${a.invalid} />
    <h5>this answer</h5><dl class="facts">
      <div><dt>probability</dt><dd>${a.probability == null ? "–" : number(a.probability, 3)}</dd></div>
      <div title="of its actions, less the cost of a completion"><dt>reward</dt><dd>${number(a.reward)}</dd></div>
      ${a.value != null && html`<div title="of the state, by this round's critic"><dt>V</dt><dd>${number(a.value)}</dd></div><div title=${Q}><dt>Q</dt><dd>${number(a.q)}</dd></div><div><dt>advantage</dt><dd>${signed(Number(a.advantage?.toPrecision(3)))}</dd></div>`}
      ${a.optimal != null && html`<div title="exact, of the best policy"><dt>V*</dt><dd>${number(a.optimal)}</dd></div>`}
      ${a.policy_value != null && html`<div title="exact, of the policy that the critic judges"><dt>Vπ</dt><dd>${number(a.policy_value)}</dd></div>`}
    </dl>
    <h5>${several ? `the ${number(of)} episodes from here` : "the episode that begins with it"}</h5>${several && html`<dl class="facts">${went}</dl><h5>one that begins with it</h5>`}
    <dl class="facts">${!several && went}
      <div title=${a.shortest == null ? "" : "played, and the fewest that lead to the goal"}><dt>actions${a.shortest == null ? "" : " / shortest"}</dt><dd>${number(a.num_actions)}${a.shortest != null ? ` / ${number(a.shortest)}` : ""}</dd></div>
      <div title="of the whole episode, not discounted"><dt>return</dt><dd>${number(a.return)}</dd></div>
    </dl>${episode != null && html`<p><${Go} to="episodes" with=${{ filter: { start: String(state) }, episode }}>step through ${several ? "one of them" : "it"}<//></p>`}</article>`;
}

/** The episode of a round's evaluation from a start state; undefined where the page holds none. */
function evaluationFrom(state, round, run = 0) {
  return rowsWith("episodes", "start_state", state).find((row) => tables.episodes.at("run", row) === run && tables.episodes.at("round", row) === round && [EVALUATION, "this run"].includes(stageKind(tables.episodes.at("stage", row))));
}

const EVALUATION = "evaluation";

/** How the evaluation's episodes from an answer's start state went: with dice, several; its own where there is no list. */
function wentFrom(row) {
  const { results } = tables, own = { of: 0, rate: answer("success", row), completions: null };
  const known = rowsWith("results", "state", answer("state", row)).filter((n) => results.at("run", n) === 0 && results.at("round", n) === answer("round", row));
  const average = (name) => mean(known.map((n) => results.at(name, n)));
  return known.length ? { of: known.length, rate: results.at("success", known[0]) == null ? own.rate : average("success"), completions: average("num_chains") } : own;
}

/** Candidates that were no chains, each text once, those of most states and rounds first. */
function noChains() {
  const found = new Map();
  for (const row of candidatesWith("invalid", 1)) {
    const { completion, state, round, count } = tables.candidates.row(row);
    const same = found.get(completion) || { completion, times: 0, forPairs: 0, places: [] };
    same.times += count ?? 0;
    same.forPairs += isSampled(row) ? 0 : 1;
    same.places.push({ state, round });
    found.set(completion, same);
  }
  return [...found.values()].sort((a, b) => b.places.length - a.places.length || b.times - a.times);
}

/** Whether a candidate was sampled freely; if not, it was drawn for the pairs of its round. */
function isSampled(row) {
  return tables.candidates.at("count", row) > 0;
}

function NoChains({ open }) {
  const found = useMemo(noChains, []);
  const [shown, more] = useMore(found);
  if (!found.length) return null;
  return html`<details id="nochains" open=${open}><summary>Candidates that were no chains: ${number(found.length)} different</summary>
    <div class="scroll"><table><thead><tr><th>completion</th><th class="number" title="freely, at temperature 1">times sampled</th><th class="number" title="in so many start states and rounds: how often there is not known">drawn for pairs</th><th class="number" title="different ones, in all rounds">start states</th><th>one of them</th></tr></thead>
      <tbody>${shown.map(({ completion, times, forPairs, places }) => html`<tr><td><code class="completion invalid"><${Text} text=${completion} most=${400} /></code></td><td class="number">${number(times)}</td><td class="number">${number(forPairs)}</td>
        <td class="number">${number(new Set(places.map(({ state }) => state)).size)}</td><td><${Go} to="states" with=${places[0]}>${stateLabel(places[0].state)}, ${roundName(places[0].round)}<//></td></tr>`)}</tbody></table></div>${more}</details>`;
}

/** What a completion is valued by, in words. */
const Q = "r + γᵏ V(next) by this round’s critic, or its own Q; where γ is per action, r is the reward with its actions discounted one after the other, and k how many they are";

/** What might be said from a start state in a round of a run, each completion once. */
function candidatesFrom(state, round, run = 0) {
  const found = new Map();
  for (const row of candidatesWith("state", state, run)) {
    const c = tables.candidates.row(row), same = found.get(c.completion), times = c.count ?? 0;
    if (c.round !== round) continue;
    if (same) { same.times += times; same.chosen = same.chosen || c.chosen; same.rejected = same.rejected || c.rejected; } else found.set(c.completion, { ...c, times });
  }
  return [...found.values()];
}

/** The K candidates of a round as a tree of what they begin with. */
function Candidates({ state, round }) {
  const candidates = candidatesFrom(state, round);
  if (!candidates.length) return null;
  const sampled = candidates.filter(({ times }) => times > 0), others = candidates.filter(({ times }) => !times);
  const covered = sampled.reduce((sum, c) => sum + (c.probability ?? 0), 0);
  const scores = candidates.map((c) => c.q).filter((q) => q != null), [low, high] = range(scores, 0), share = ({ q }) => (q - low) / (high - low) || 0;
  const valued = scores.length ? `Q is ${Q}` : "there was no critic yet, so that there is no Q";
  return html`<h3>What else it might say ${round === 0 ? "before any round" : `in ${roundName(round)}`} <span class="muted">${number(sampled.length)} different completion${sampled.length === 1 ? "" : "s"} of probability ${number(covered, 3)} together; ${valued}</span></h3>
    <div class="scroll"><table class="tree"><thead><tr><th>candidate</th><th class="number">probability</th><th class="number">times</th><th class="number" title="of its actions, less the cost of a completion; not discounted">reward</th><th class="number">Q</th><th></th></tr></thead>
    <tbody>${[...treeRows(sampled), ...(others.length ? [{ title: "Drawn for this round’s pairs, by the actor before it learnt from them" }] : []), ...treeRows(others)].map(({ title, depth, tokens, shared, leaf }) => title ? html`<tr class="apart"><th colspan="6">${title}</th></tr>` : html`<tr class=${leaf ? "" : "branch"}>
      <td style=${{ paddingLeft: `${8 + 14 * depth}px` }}>${leaf ? html`${depth > 0 && "└ "}<${Tokens} text=${tokens.join("")} tokens=${tokens} probabilities=${shared} invalid=${leaf.invalid} />` : html`<code class="completion"><bdi>${visible(tokens.join(""))}</bdi></code>`}</td>
      ${leaf ? html`<td class="number">${number(leaf.probability, 3)}</td><td class="number">${leaf.times || "–"}</td><td class="number">${number(leaf.reward)}</td>
        <td class="number">${leaf.q == null ? "–" : html`<span class="pill" style=${{ background: shade(share(leaf)), color: inkOn(share(leaf)) }}>${number(leaf.q)}</span>`}</td>
        <td>${leaf.chosen ? html`<b class="good">chosen</b>` : leaf.rejected ? html`<b class="bad">rejected</b>` : ""}${leaf.invalid ? html`<span class="bad">${leaf.rejected || leaf.chosen ? ", " : ""}no chain</span>` : ""}</td>` : html`<td colspan="5" class="muted">${tokens.of} ways on</td>`}
    </tr>`)}</tbody></table></div>`;
}

/** Candidates by their first tokens: a branch wherever several go the same way. */
function treeRows(candidates, start = 0, depth = 0) {
  const byToken = new Map();
  for (const c of candidates) {
    const tokens = c.tokens && c.tokens.length ? c.tokens : [c.completion], key = tokens[start] ?? "";
    if (!byToken.has(key)) byToken.set(key, []);
    byToken.get(key).push({ ...c, tokens });
  }
  const best = (group) => Math.max(...group.map((c) => c.probability ?? 0));
  return [...byToken.values()].sort((a, b) => best(b) - best(a)).flatMap((group) => {
    if (group.length === 1) {
      const [leaf] = group;
      return [{ depth, leaf, tokens: leaf.tokens.slice(start), shared: (leaf.probabilities || []).slice(start) }];
    }
    let end = start + 1;
    while (group.every((c) => c.tokens[end] !== undefined && c.tokens[end] === group[0].tokens[end])) end += 1;
    const tokens = group[0].tokens.slice(start, end);
    tokens.of = group.length;
    return [{ depth, tokens }, ...treeRows(group, end, depth + 1)];
  });
}
