// Curves of any metric: rounds or runs over each other; seeds as a band.

const MAIN_CURVES = ["eval/success_rate", "eval/success_within_2_chains", "eval/episode_return", "eval/actions_over_shortest", "eval/sampled_invalid_rate", "train/loss", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected", "eval_r2", "rollout/episode_return", "search/best_fitness", "search/fitness"];

/** Curves of a metric: one line for each stage that has it; single points are joined over rounds. */
function linesOf(name, run) {
  const rows = Array.from({ length: tables.curves.length }, (_, row) => row).filter((row) => tables.curves.at("run", row) === run && curveName(row) === name);
  return rows.map((row) => ({ stage: tables.curves.at("stage", row), x: tables.curves.at("steps", row), y: tables.curves.at("values", row) }));
}

/** A metric, and the kind of stage that it is of: the losses of critics and actors are apart. */
function curveName(row) {
  const stage = tables.curves.at("stage", row), key = tables.curves.at("key", row);
  return stage ? `${stage.split("/").pop().replace("_", " ")} · ${key}` : key;
}

function curveKeys() {
  const names = new Map();
  for (let row = 0; row < tables.curves.length; row++) {
    const name = curveName(row);
    names.set(name, Math.max(names.get(name) || 0, tables.curves.at("values", row).filter((value) => value != null).length));
  }
  return [...names].filter(([name, length]) => length > 1 && !name.includes("alarm/")).map(([name]) => name);
}

function CurvesScreen() {
  const keys = useMemo(() => curveKeys().sort((a, b) => rankOf(a) - rankOf(b) || naturally(a, b)), []);
  const [filter, setFilter] = useState("");
  const [weight, setWeight] = useState(0);
  const [log, setLog] = useState(false);
  const [picked, pick] = useState([]);
  const [band, setBand] = useState(facts.runs.length > 2);
  const matching = keys.filter((key) => key.toLowerCase().includes(filter.toLowerCase()));
  const shown = picked.length ? picked : filter ? matching.slice(0, 12) : keys.filter((key) => rankOf(key) < 99).slice(0, 9).concat(keys.filter((key) => rankOf(key) === 99)).slice(0, 9);
  return html`<section class="screen" aria-label="curves">
    <div class="filters">
      <${Field} label="find" type="search" hint="a metric" value=${filter} onInput=${setFilter} />
      <label class="field"><span>smoothing</span><input id="smoothing" type="range" min="0" max="0.99" step="0.01" value=${weight} onInput=${(event) => setWeight(Number(event.target.value))} /> ${weight.toFixed(2)}</label>
      <${Toggle} label="log scale" on=${log} onChange=${setLog} />
      ${facts.runs.length > 1 && html`<${Toggle} label="runs as a band" on=${band} onChange=${setBand} title="mean, lowest and highest of the runs, each round apart" />`}
      <span class="count">${number(keys.length)} metrics; drag in a chart to zoom, double-click to go back; a click on a round shows its episodes, on SimPO its pairs${facts.runs.length > 1 && !band ? "; a colour for each run, and for each round a line: the first is whole, the second dashed, the third dotted" : ""}</span>
    </div>
    <details class="keys"><summary>choose metrics</summary><div class="chips">${matching.map((key) => html`<${Toggle} label=${visible(key)} on=${picked.includes(key)} onChange=${(on) => pick(on ? [...picked, key] : picked.filter((other) => other !== key))} />`)}</div></details>
    ${facts.runs.length < 2 && html`<p class="muted" id="beside">Another run beside this one, such as another seed, here and in Compare: <code>lactchain report RUN --beside '[OTHER_RUN]'</code></p>`}
    ${filter && !matching.length && html`<p class="empty" id="no-metric">Nothing found: no metric has “${visible(filter)}” in its name.</p>`}
    <div class="charts curves">${shown.map((key) => html`<${Metric} key=${key} name=${key} weight=${weight} log=${log} band=${band} />`)}</div>
  </section>`;
}

function rankOf(key) {
  const place = MAIN_CURVES.indexOf(key.split(" · ").pop());
  return place < 0 ? (/loss|return|success/.test(key) ? 50 : 99) : place;
}

function Metric({ name, weight, log, band }) {
  const series = useMemo(() => {
    const runs = facts.runs.map((_, run) => linesOf(name, run).filter(({ x }) => x.length > 1));
    const stages = [...new Set(runs.flatMap((lines) => lines.map(({ stage }) => stage)))].sort(naturally);
    if (facts.runs.length > 1 && band) return stages.flatMap((stage, n) => bandOf(runs, stage, stages.length > 1 ? seriesColour(n, stages.length) : SERIES[0], weight));
    if (facts.runs.length > 1) return runs.flatMap((lines, run) => lines.map((line) => ({ ...drawn(line, named(facts.runs[run], line.stage), seriesColour(run, facts.runs.length), weight), dash: DASHES[stages.indexOf(line.stage) % DASHES.length] })));
    return runs[0].map((line, n) => drawn(line, stageLabel(line.stage) || name, seriesColour(n, runs[0].length), weight));
  }, [name, weight, band]);
  if (!series.length) return null;
  const isRound = /^(eval|alarm)\//.test(name) && tables.results.length > 0;
  const pick = isRound ? (round) => go("episodes", { filter: { round: String(round) } }) : name.startsWith("simpo ·") ? () => go("pairs") : null;
  return html`<${Curves} title=${visible(name)} series=${series} log=${log} xLabel=${isRound ? "round" : "step"} onPick=${pick} />`;
}

function drawn({ x, y }, label, colour, weight) {
  return { label: visible(label), x, y: smoothed(y, weight), colour };
}

function stageLabel(stage) {
  return stage.replace(/\/(critic|simpo|evaluation)$/, "").replace("_", " ");
}

/** What a line is called: the run or what it is of several, and the round that it is of. */
function named(what, stage) {
  return stage ? `${what}, ${stageLabel(stage)}` : what;
}

/** Rounds of one run have its colour, and each a dash of its own. */
const DASHES = [null, [8, 4], [2, 3], [10, 3, 2, 3]];

/** In one stage the mean of the runs, between the lowest and the highest, at steps that all of them have. */
function bandOf(runs, stage, colour, weight) {
  const lines = runs.flatMap((some, run) => some.filter((line) => line.stage === stage).map((line) => drawn(line, named(facts.runs[run], stage), colour, weight)));
  if (lines.length < 2) return lines;
  const values = lines.map(({ x, y }) => new Map(x.map((step, n) => [step, y[n]])));
  const x = lines[0].x.filter((step) => values.every((known) => known.get(step) != null));
  const at = (step) => values.map((known) => known.get(step));
  const label = (what) => named(`${what} of ${lines.length}`, stage);
  return [{ label: label("mean"), colour, x, y: x.map((s) => mean(at(s))), low: x.map((s) => Math.min(...at(s))), high: x.map((s) => Math.max(...at(s))), lowLabel: label("lowest"), highLabel: label("highest") }];
}
