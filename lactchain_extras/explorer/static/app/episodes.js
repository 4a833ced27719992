// Episodes: all of them in a table, failures first, and one of them step by step.

const EPISODE_COLUMNS = [
  { name: "outcome", label: "ending", show: (row) => html`<${Outcome} outcome=${tables.episodes.at("outcome", row)} />` },
  { name: "start_state", label: "start", wide: true, show: (row) => startLabel(row) },
  { name: "round", label: "round", show: (row) => roundName(tables.episodes.at("round", row)) },
  { name: "stage", label: "played in", spare: true, show: (row) => stageKind(tables.episodes.at("stage", row)) },
  { name: "episode_return", label: "return", number: true },
  { name: "num_steps", label: "compl.", title: "completions", number: true, spare: true },
  { name: "num_actions", label: "actions", number: true, spare: true },
  { name: "faults", label: "faults", title: "actions that left the state as it was, completions that were no chains, the same completion to the same state three times", spare: true, show: (row) => faults(row) },
].map((column) => ({ show: (row) => number(tables.episodes.at(column.name, row)), ...column }));

const KINDS = { critic: "critic's rollouts" };

function stageKind(stage) {
  const kind = (stage || "this run").split("/").pop().replace("_", " ");
  return KINDS[kind] || kind;
}

/** What went wrong in an episode, counted. */
function faults(row) {
  const { num_bumps: bumps, num_invalid: invalid, loop } = tables.episodes.row(row);
  return [bumps && `${bumps} bump${bumps > 1 ? "s" : ""}`, invalid && `${invalid} invalid`, loop && "loop"].filter(Boolean).join(", ");
}

function faultCount(row) {
  return ["num_bumps", "num_invalid", "loop"].reduce((sum, name) => sum + tables.episodes.at(name, row), 0);
}

function startLabel(row) {
  const state = tables.episodes.at("start_state", row);
  return state == null ? clipped(tables.steps.at("prompt", index.firstSteps[row]), 60) : clipped(stateLabel(state), 60);
}

const NO_FILTER = { run: "0", round: "all", stage: "all", outcome: "all", invalid: false, loop: false, bumps: false, least: "", most: "", low: "", high: "", text: "", start: "all" };

/** What of a filter is set. */
function changedFields(filter) {
  return Object.fromEntries(Object.entries(filter).filter(([name, value]) => value !== NO_FILTER[name]));
}

/** Rows of episodes that a filter keeps. */
function filterEpisodes(filter) {
  const { episodes, steps } = tables, kept = [];
  const tests = [];
  const equal = (name, wanted) => { if (wanted !== "all") { const ok = episodes.where(name, (value) => String(value) === String(wanted)); tests.push((row) => ok[row]); } };
  equal("run", filter.run);
  equal("round", filter.round);
  equal("outcome", filter.outcome === "failed" ? "all" : filter.outcome);
  equal("start_state", filter.start);
  if (filter.outcome === "failed") { const ok = episodes.where("outcome", (value) => value !== "solved"); tests.push((row) => ok[row]); }
  if (filter.stage !== "all") { const ok = episodes.where("stage", (value) => stageKind(value) === filter.stage); tests.push((row) => ok[row]); }
  for (const [flag, name] of [["invalid", "num_invalid"], ["loop", "loop"], ["bumps", "num_bumps"]]) {
    if (filter[flag]) { const column = episodes.column(name); tests.push((row) => column[row] > 0); }
  }
  for (const [least, most, name] of [["least", "most", "num_steps"], ["low", "high", "episode_return"]]) {
    const column = episodes.column(name);
    if (filter[least] !== "") tests.push((row) => column[row] >= Number(filter[least]));
    if (filter[most] !== "") tests.push((row) => column[row] <= Number(filter[most]));
  }
  if (filter.text) {
    const wanted = filter.text.toLowerCase(), fits = (text) => String(text ?? "").toLowerCase().includes(wanted);
    const inStep = ["completion", "prompt", "invalid"].map((name) => steps.where(name, fits));
    tests.push((row) => {
      for (let step = index.firstSteps[row]; step < index.firstSteps[row + 1]; step++) if (inStep[0][step] || inStep[1][step] || inStep[2][step]) return true;
      return false;
    });
  }
  rows: for (let row = 0; row < episodes.length; row++) {
    for (const test of tests) if (!test(row)) continue rows;
    kept.push(row);
  }
  return kept;
}

/** Failures first, the latest rounds first among them. */
function failuresFirst(rows) {
  const { episodes } = tables, rank = episodes.where("outcome", (value) => value === "solved");
  const round = episodes.column("round"), evaluated = episodes.where("stage", (stage) => stageKind(stage) === "evaluation");
  return rows.slice().sort((a, b) => rank[a] - rank[b] || evaluated[b] - evaluated[a] || (round[b] ?? -1) - (round[a] ?? -1) || a - b);
}

function EpisodesScreen({ wanted }) {
  const [filter, setFilter] = useKept("episodes filter", { ...NO_FILTER, ...wanted?.filter });
  const [sort, setSort] = useKept("episodes sort", null);
  const [chosen, choose] = useKept("episodes chosen", null);
  useEffect(() => { if (wanted?.filter) { setFilter({ ...NO_FILTER, ...wanted.filter }); choose(wanted.episode ?? null); } }, [wanted]);
  useLayoutEffect(() => told("episodes", { filter: changedFields(filter), episode: chosen }), [filter, chosen]);
  const rows = useMemo(() => {
    const kept = filterEpisodes(filter);
    return sort ? sorted(kept, (row) => (sort.name === "faults" ? faultCount(row) : tables.episodes.at(sort.name, row)), sort.down) : failuresFirst(kept);
  }, [filter, sort]);
  if (!tables.episodes.length) return html`<${Empty}>No episodes lie in this folder yet.<//>`;
  const set = (name) => (value) => setFilter({ ...filter, [name]: value });
  const shown = chosen != null && tables.episodes.length > chosen ? chosen : rows[0];
  const rounds = tables.episodes.values("round"), stages = [...new Set(tables.episodes.values("stage").map(stageKind))];
  return html`<section class="screen" aria-label="episodes">
    <div class="filters">
      ${facts.runs.length > 1 && html`<${Choice} id="filter-run" label="run" value=${filter.run} onChange=${set("run")} options=${[["all", "all"], ...facts.runs.map((name, run) => [String(run), visible(name)])]} />`}
      <${Choice} id="filter-round" label="round" value=${filter.round} onChange=${set("round")} options=${[["all", "all"], ...rounds.map((r) => [String(r), roundName(r)])]} />
      <${Choice} id="filter-stage" label="played in" value=${filter.stage} onChange=${set("stage")} options=${[["all", "all"], ...stages.map((s) => [s, s])]} />
      <${Choice} id="filter-outcome" label="ending" value=${filter.outcome} onChange=${set("outcome")} options=${[["all", "all"], ["failed", "not solved"], ["solved", "solved"], ["ended", "ended elsewhere"], ["cut off", "cut off"]]} />
      <${Toggle} label="invalid" on=${filter.invalid} onChange=${set("invalid")} title="episodes with a completion that is no chain" />
      <${Toggle} label="bumps" on=${filter.bumps} onChange=${set("bumps")} title="episodes with an action that left the state as it was" />
      <${Toggle} label="loops" on=${filter.loop} onChange=${set("loop")} title="episodes with the same completion to the same state three times" />
      <${Field} label="completions" type="number" width="5em" hint="least" value=${filter.least} onInput=${set("least")} />
      <${Field} label="to" type="number" width="5em" hint="most" value=${filter.most} onInput=${set("most")} />
      <${Field} label="return" type="number" width="5em" hint="least" value=${filter.low} onInput=${set("low")} />
      <${Field} label="to" type="number" width="5em" hint="most" value=${filter.high} onInput=${set("high")} />
      <${Field} label="text" type="search" width="14em" hint="in prompts, completions" value=${filter.text} onInput=${set("text")} />
      ${filter.start !== "all" && html`<${Toggle} label=${`from ${clipped(stateLabel(Number(filter.start)), 40)} ×`} on=${true} onChange=${() => set("start")("all")} />`}
      <span class="count" id="episode-count">${number(rows.length)} of ${number(ofRun("episodes", filter.run).length)}</span>
      <button class="link" onClick=${() => { setFilter(NO_FILTER); setSort(null); }}>clear</button>
      <${Csv} table="episodes" rows=${rows} />
    </div>
    ${facts.sample && html`<p class="muted">${facts.sample}</p>`}
    ${filter.invalid && !rows.length && html`<${NonePlayed} />`}
    <div class="split episodes">
      <${LongTable} label="table of episodes" columns=${EPISODE_COLUMNS} rows=${rows} selected=${shown} onSelect=${choose} sort=${sort}
        onSort=${(name) => setSort(sort && sort.name === name ? (sort.down ? null : { name, down: true }) : { name, down: false })} height=${620} />
      ${shown != null ? html`<${Player} key=${shown} episode=${shown} />` : html`<${Empty}>No episode fits these filters.<//>`}
    </div>
  </section>`;
}

/** Where the answers that were no chains are, if no episode has one. */
function NonePlayed() {
  const candidates = candidatesWith("invalid", 1), sampled = candidates.filter(isSampled).length, pairs = noChainPairs().length;
  return html`<p id="none-played">No such answer was played in these episodes. Of what else was said, there are
    ${" "}<${Go} to="states" with=${{ noChains: true }}>${number(candidates.length)} candidates<//>, ${number(sampled)} sampled freely and ${number(candidates.length - sampled)} drawn for pairs, which stand again in <${Go} to="pairs" with=${{ noChain: true, state: null }}>${number(pairs)} pairs<//>.</p>`;
}

/** One episode, step by step: ← and → move, Space plays. */
function Player({ episode, compact = false, autoplay = false }) {
  const steps = useMemo(() => stepsOf(episode), [episode]);
  const frames = useMemo(() => framesOf(steps), [episode]);
  const [frame, setFrame] = useState(0);
  const [playing, setPlaying] = useState(autoplay && !matchMedia("(prefers-reduced-motion: reduce)").matches);
  useEffect(() => {
    if (!playing) return undefined;
    const hidden = () => compact && document.getElementById("summary").hidden;
    const timer = setInterval(() => hidden() || setFrame((now) => (now + 1 < frames.length ? now + 1 : (setPlaying(false), now))), compact ? 420 : 380);
    return () => clearInterval(timer);
  }, [playing, frames]);
  const { step, position } = frames[Math.min(frame, frames.length - 1)];
  const stepFrame = (n) => frames.findIndex((f) => f.step === n);
  const jump = (n) => { setPlaying(false); setFrame(stepFrame(Math.min(steps.length - 1, Math.max(0, n)))); };
  const keys = (event) => {
    if (event.target.tagName === "INPUT" || event.target.tagName === "SELECT") return;
    if (event.key === "Escape") event.currentTarget.parentElement.querySelector(".longtable")?.focus();
    if (event.key === "ArrowRight") { event.preventDefault(); jump(step + 1); }
    if (event.key === "ArrowLeft") { event.preventDefault(); jump(step - 1); }
    if (event.key === " " && event.target.tagName !== "BUTTON") { event.preventDefault(); setPlaying(!playing); }
  };
  const row = tables.episodes.row(episode);
  const board = html`<${EpisodeBoard} episode=${episode} steps=${steps} step=${step} position=${position} />`;
  const controls = html`<div class="controls">
    <button aria-label="first completion" onClick=${() => jump(0)}>|◀</button><button aria-label="completion before" onClick=${() => jump(step - 1)}>‹</button>
    <button class="play" aria-label=${playing ? "pause" : "play"} onClick=${() => { if (frame >= frames.length - 1) setFrame(0); setPlaying(!playing); }}>${playing ? "❚❚" : "▶"}</button>
    <button aria-label="next completion" onClick=${() => jump(step + 1)}>›</button>
    <input type="range" aria-label="moment" min="0" max=${frames.length - 1} value=${frame} onInput=${(event) => { setPlaying(false); setFrame(Number(event.target.value)); }} />
    <span class="muted">${step + 1} / ${steps.length}</span></div>`;
  if (compact) return html`<div class="player compact">${board}${controls}</div>`;
  return html`<div class="player" tabindex="0" onKeyDown=${keys} role="region" aria-label="episode, step by step">
    <header><${Outcome} outcome=${row.outcome} /> return ${number(row.episode_return)} · ${row.run ? html`<b>${visible(facts.runs[row.run])}</b>, ` : ""}${roundName(row.round)}, ${stageKind(row.stage)} · number ${row.number} there
      ${row.start_state != null && html` · <${Go} to="states" with=${{ state: row.start_state }}>this start state in every round<//>${" · "}<${Go} to="episodes" with=${{ filter: { start: String(row.start_state) } }}>all episodes from here<//>`}</header>
    <div class="stage">${board}<div class="now"><h4>prompt</h4><pre class="prompt"><${Text} text=${tables.steps.at("prompt", steps[step])} /></pre>
      <h4>completion ${step + 1}</h4><${StepLine} step=${steps[step]} />
      <${Rewards} step=${steps[step]} /></div></div>
    ${controls}
    <${StepTable} steps=${steps} step=${step} jump=${jump} round=${row.round} />
    <p class="muted">${row.end_text && html`In the end: <${Text} text=${row.end_text} most=${400} />`}</p>
    <p class="muted">policy <${Text} text=${row.policy || "unnamed"} most=${200} /></p>
  </div>`;
}

/** The moments of an episode: before each completion, and after each of its actions. */
function framesOf(steps) {
  const frames = [];
  steps.forEach((row, step) => {
    const way = tables.steps.at("way", row) || [];
    frames.push({ step, position: 0 });
    way.forEach((_, n) => frames.push({ step, position: n + 1 }));
  });
  return frames.length ? frames : [{ step: 0, position: 0 }];
}

function EpisodeBoard({ episode, steps, step, position }) {
  const over = step === steps.length - 1 && position > 0;
  const ended = tables.episodes.at("end_state", episode);
  const before = sceneOf(tables.steps.at("state", steps[step]));
  const last = over && (!before || !before.agent) ? sceneOf(ended) : null;
  const scene = last || before;
  if (!scene) {
    const noAgentEnd = sceneOf(ended);
    if (!noAgentEnd) return null;
  }
  const shown = scene || sceneOf(ended);
  const ways = steps.slice(0, step + 1).map((row, n) => {
    const from = sceneOf(tables.steps.at("state", row)), way = tables.steps.at("way", row) || [];
    return { from: from && from.agent, way: n === step ? way.slice(0, position) : way, order: n, faint: n < step };
  }).filter(({ way }) => way.length && shown.agent);
  const way = tables.steps.at("way", steps[step]) || [];
  const agent = position > 0 && shown.agent ? way[position - 1] : shown.agent;
  const visited = steps.slice(0, step + 1).flatMap((row, n) => {
    const from = sceneOf(tables.steps.at("state", row));
    return [...(from && from.agent ? [from.agent] : []), ...(tables.steps.at("way", row) || []).slice(0, n === step ? position : undefined)];
  });
  return html`<${Board} scene=${shown} agent=${agent} ways=${ways} seen=${seenFrom(visited)} label="the state of the world" />`;
}

function StepLine({ step }) {
  const row = tables.steps.row(step);
  return html`<${Tokens} text=${row.completion} tokens=${row.tokens} probabilities=${row.probabilities} invalid=${row.invalid != null} />
    ${row.invalid != null && html`<p class="bad">no chain: <${Text} text=${row.invalid} /></p>`}${row.cut ? html`<p class="bad">cut at the greatest length</p>` : ""}`;
}

function Rewards({ step }) {
  const { executed, rewards, bumped, value, advantage } = tables.steps.row(step);
  return html`<ol class="actions">${(executed || []).map((name, n) => html`<li class=${bumped[n] ? "bad" : ""}><${Text} text=${name} most=${60} /> <span class="number">${signed(rewards[n])}</span>${bumped[n] ? " bump" : ""}</li>`)}</ol>
    ${value != null && html`<p>V ${number(value)} · Q ${advantage == null ? "–" : number(value + advantage)} · advantage <b>${signed(advantage)}</b></p>`}`;
}

function StepTable({ steps, step, jump, round }) {
  const valued = steps.some((row) => tables.steps.at("value", row) != null);
  return html`<div class="scroll steps"><table><thead><tr><th></th><th>completion</th><th class="number">reward</th>${valued && html`<th class="number">V</th><th class="number">Q</th><th class="number">adv.</th>`}</tr></thead>
    <tbody>${steps.map((row, n) => {
      const value = tables.steps.at("value", row), advantage = tables.steps.at("advantage", row);
      return html`<tr class=${n === step ? "selected" : ""} onClick=${() => jump(n)}><td><b style=${{ color: seriesColour(n) }}>${n + 1}</b></td>
        <td><button class="plain left" onClick=${() => jump(n)}><${Tokens} text=${clippedRaw(tables.steps.at("completion", row))} tokens=${tables.steps.at("tokens", row)} probabilities=${tables.steps.at("probabilities", row)} invalid=${tables.steps.at("invalid", row) != null} /></button></td>
        <td class="number">${number(tables.steps.at("reward", row))}</td>${valued && html`<td class="number">${number(value)}</td><td class="number">${advantage == null ? "–" : number(value + advantage)}</td><td class="number">${signed(advantage)}</td>`}</tr>`;
    })}</tbody></table></div>
    ${valued && html`<p class="muted">Values by ${round == null ? "the run's critic or value model" : `the critic of ${roundName(round)}`}.</p>`}`;
}

function clippedRaw(text) {
  const whole = String(text ?? "");
  return whole.length > 200 ? `${whole.slice(0, 200)}…` : whole;
}
