// The critic: predicted over exact, calibration, error by distance and by round.

/** Rows of answers, or of plain values, in which both numbers are known. */
function valuedRows() {
  const found = [];
  const add = (table, row) => {
    const t = tables[table], value = t.at("value", row), { exact, reference } = exactOf(table, row);
    if (value != null && exact != null) found.push({ round: t.at("round", row), state: t.at("state", row), x: exact, y: value, reference });
  };
  tables.answers.column("state").forEach((_, row) => add("answers", row));
  const known = new Set(found.map(({ round }) => round));
  rowsWith("values", "run", 0).forEach((row) => { if (!known.has(tables.values.at("round", row))) add("values", row); });
  const judged = new Set(found.filter(({ reference }) => reference === OWN).map(({ round }) => round));
  return found.filter(({ round, reference }) => reference === OWN || !judged.has(round));
}

const OWN = "Vπ", BEST = "V*";
const REFERENCES = { [OWN]: "the exact value of the policy that it judges (Vπ)", [BEST]: "the exact value of the best policy (V*): Vπ was not computed for this round" };

/** The exact value that a row has, and of which policy: the one that the critic judges, else the best. */
function exactOf(table, row) {
  const { columns } = tables[table], own = tables[table].at("policy_value", row);
  if (own != null) return { exact: own, reference: OWN };
  return { exact: columns.optimal ? tables[table].at("optimal", row) : null, reference: BEST };
}

/** How far values are from the exact ones, and the share of these that they explain. */
function scoresOf(points) {
  const squares = mean(points.map((p) => (p.y - p.x) ** 2)), spread = variance(points.map((p) => p.x));
  return { rmse: number(Math.sqrt(squares), 3), r2: spread ? number(1 - squares / spread, 3) : "–" };
}

/** Each round's critic in a row: against different policies, its scores are no trend. */
function ByRound({ points, rounds }) {
  const rows = rounds.map((r) => [r, points.filter((p) => p.round === r)]);
  return html`<h3>By round</h3><table id="by-round"><thead><tr><th>critic of</th><th class="number">RMSE</th><th class="number">R²</th><th>against</th></tr></thead>
    <tbody>${rows.map(([r, those]) => { const { rmse, r2 } = scoresOf(those); return html`<tr><td>${roundName(r)}</td><td class="number">${rmse}</td><td class="number">${r2}</td><td>${those[0].reference}</td></tr>`; })}</tbody></table>`;
}

function shortestOf() {
  const shortest = new Map();
  tables.results.column("state").forEach((state, row) => tables.results.at("run", row) === 0 && shortest.set(state, tables.results.at("shortest", row)));
  return shortest;
}

function CriticScreen({ wanted }) {
  const all = useMemo(valuedRows, []);
  const shortest = useMemo(shortestOf, []);
  const rounds = useMemo(() => [...new Set(all.map(({ round }) => round))].sort((a, b) => a - b), []);
  const [round, setRound] = useState(rounds[rounds.length - 1]);
  const [chosen, choose] = useState(null);
  if (!all.length) return html`<${CriticByReturns} />`;
  const here = all.filter((p) => p.round === round);
  const errors = here.map((p) => p.y - p.x), [{ reference }] = here, { rmse, r2 } = scoresOf(here);
  const points = here.map((p) => ({ ...p, id: p.state, hint: `${stateLabel(p.state)}: V ${number(p.y)}, ${p.reference} ${number(p.x)}` }));
  return html`<section class="screen" aria-label="critic">
    <div class="filters"><${Rounds} id="critic-round" rounds=${rounds} value=${round} onChange=${setRound} />
      <${Figure} label="RMSE" value=${rmse} /><${Figure} label="R²" value=${r2} />
      <${Figure} label="mean error" value=${signed(Number(mean(errors).toPrecision(3)))} /><${Figure} label="states" value=${number(here.length)} />
      <span class="muted" id="against">The critic of ${roundName(round)}, against ${REFERENCES[reference]}.</span></div>
    <div class="split critic"><div class="charts">
      <${Dots} title=${`predicted over ${reference}`} points=${points} xLabel=${`${reference}, exact`} yLabel="V of the critic" selected=${chosen} onClick=${(p) => choose(p.id)} />
      <${Calibration} points=${here} reference=${reference} />
      <${Bars} title="error by distance" xLabel="shortest way to the goal, in actions" yLabel="RMSE" groups=${[{ label: "RMSE", colour: SERIES[0], bars: byDistance(here, shortest) }]} />
    </div>
    <div>${rounds.length > 1 && html`<${ByRound} points=${all} rounds=${rounds} />`}<${Worst} key=${round} points=${here} shortest=${shortest} reference=${reference} />
      ${chosen != null && html`<p><b>${stateLabel(chosen)}</b> <${Go} to="states" with=${{ state: chosen, metric: "error", round }}>see it on the map<//></p>`}</div></div>
  </section>`;
}

/** The states whose values are farthest from the exact ones. */
function Worst({ points, shortest, reference }) {
  const ordered = useMemo(() => points.slice().sort((a, b) => Math.abs(b.y - b.x) - Math.abs(a.y - a.x)), [points]);
  const [shown, more] = useMore(ordered);
  return html`<h3>Where it is most wrong</h3>
    ${reference === BEST && html`<p class="muted" id="not-best">A negative error can also mean that the policy was not the best one yet: the critic judges that policy, V* the best.</p>`}
    <div class="scroll"><table id="worst"><thead><tr><th>state</th><th class="number">V</th><th class="number">${reference}</th><th class="number">error</th><th class="number">distance</th><th></th></tr></thead>
      <tbody>${shown.map((p) => html`<tr><td>${stateLabel(p.state)}</td><td class="number">${number(p.y)}</td><td class="number">${number(p.x)}</td><td class="number"><b>${signed(Number((p.y - p.x).toPrecision(4)))}</b></td><td class="number">${number(shortest.get(p.state))}</td>
        <td><${Go} to="states" with=${{ state: p.state, metric: "error", round: p.round }}>map<//></td></tr>`)}</tbody></table></div>${more}`;
}

function mean(values) {
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN;
}

function variance(values) {
  const middle = mean(values);
  return mean(values.map((v) => (v - middle) ** 2));
}

function byDistance(points, shortest) {
  const found = new Map();
  for (const p of points) {
    const distance = shortest.get(p.state);
    if (distance == null) continue;
    if (!found.has(distance)) found.set(distance, []);
    found.get(distance).push((p.y - p.x) ** 2);
  }
  return [...found].sort(([a], [b]) => a - b).map(([x, squares]) => ({ x, y: Math.sqrt(mean(squares)), hint: `${x} actions: RMSE ${number(Math.sqrt(mean(squares)))} over ${squares.length} states` }));
}

/** Tenths of the predictions, and what was true of them. */
function Calibration({ points, reference }) {
  const order = points.slice().sort((a, b) => a.y - b.y), size = Math.max(1, Math.ceil(order.length / 10));
  const bins = Array.from({ length: Math.ceil(order.length / size) }, (_, n) => order.slice(n * size, (n + 1) * size));
  const dots = bins.map((bin, n) => ({ x: mean(bin.map((p) => p.x)), y: mean(bin.map((p) => p.y)), id: -1 - n, colour: SERIES[2], hint: `${bin.length} states: V ${number(mean(bin.map((p) => p.y)))}, ${reference} ${number(mean(bin.map((p) => p.x)))}` }));
  return html`<${Dots} title="calibration, by tenths of the predictions" points=${dots} xLabel=${`mean ${reference}`} yLabel="mean V" />`;
}

/** Where nothing is exact: values of the steps against what followed. */
function CriticByReturns() {
  const known = ownSteps("value").reduce((count, v) => count + (v != null), 0);
  if (!known) return html`<${Empty}>No values lie in this folder: neither a critic's beside exact ones, nor of the episodes' states.<//>`;
  const advantages = ownSteps("advantage").filter((v) => v != null);
  return html`<section class="screen"><p>${number(known)} completions have a value; how they compare with what followed:</p>
    <div class="charts"><${Histogram} title="advantages" values=${advantages} xLabel="what followed less the value" /></div></section>`;
}
