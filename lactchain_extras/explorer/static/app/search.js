// Search: the lineage as a tree, fitness over generations, genes against fitness.

function SearchScreen() {
  const { members } = tables;
  const [chosen, choose] = useState(null);
  const rows = useMemo(() => Array.from({ length: members.length }, (_, n) => members.row(n)), []);
  const genes = useMemo(() => genePoints(rows), []);
  const best = rows.reduce((a, b) => ((b.fitness ?? -Infinity) > (a?.fitness ?? -Infinity) ? b : a), null);
  const [gene, setGene] = useState([...genes.keys()][0]);
  if (!rows.length) return html`<${Empty}>This run was no search.<//>`;
  const points = rows.filter((m) => m.fitness != null).map((m) => ({ x: m.generation, y: m.fitness, id: m.id, colour: m === best ? SERIES[1] : SERIES[0], hint: `member ${m.id}, ${m.mutation}: fitness ${number(m.fitness)}` }));
  return html`<section class="screen" aria-label="search">
    <div class="filters"><${Figure} label="best fitness" value=${number(best.fitness)} /><${Figure} label="members" value=${number(rows.length)} />
      <${Figure} label="generations" value=${number(Math.max(...rows.map((m) => m.generation)) + 1)} /><${Figure} label="environment steps" value=${number(Math.max(...rows.map((m) => m.num_env_steps || 0)))} /></div>
    <h3>Lineage</h3><${Lineage} rows=${rows} best=${best} chosen=${chosen} choose=${choose} />
    <div class="charts">
      <${Dots} title="fitness over generations" points=${points} xLabel="generation" yLabel="fitness" diagonal=${false} onClick=${(p) => choose(p.id)} selected=${chosen} />
      ${gene && html`<div><${Choice} id="gene" label="gene" value=${gene} onChange=${setGene} options=${[...genes.keys()].map((name) => [name, name])} />
        <${Dots} title=${`fitness against ${gene}`} points=${genes.get(gene)} xLabel=${gene} yLabel="fitness" diagonal=${false} /></div>`}
    </div></section>`;
}

/** What values each gene had, and how fit that member was. */
function genePoints(rows) {
  const found = new Map();
  const add = (name, value, fitness) => {
    if (!Number.isFinite(value) || fitness == null) return;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ x: value, y: fitness, hint: `${name} ${number(value)}: fitness ${number(fitness)}` });
  };
  for (const m of rows) {
    for (const [name, [, after]] of Object.entries(JSON.parse(m.change))) add(name, after, m.fitness);
    for (const [name, value] of Object.entries(JSON.parse(m.tunables))) add(name, value, m.fitness);
  }
  return found;
}

/** Who came from whom; the way to the fittest is drawn strong. */
function Lineage({ rows, best, chosen, choose }) {
  const generations = new Map();
  rows.forEach((m) => generations.set(m.generation, [...(generations.get(m.generation) || []), m]));
  const place = new Map(), dx = 90, dy = 26;
  for (const [generation, members] of generations) members.forEach((m, n) => place.set(m.id, [40 + generation * dx, 20 + n * dy]));
  const byId = new Map(rows.map((m) => [m.id, m])), line = new Set();
  for (let m = byId.get(chosen) || best; m; m = byId.get(m.parent)) line.add(m.id);
  const [low, high] = range(rows.map((m) => m.fitness), 0), most = Math.max(...[...generations.values()].map((g) => g.length));
  const shown = byId.get(chosen) || best;
  return html`<div class="scroll"><svg class="lineage" width=${60 + dx * generations.size} height=${30 + dy * most} role="img" aria-label="lineage">
    ${rows.filter((m) => place.has(m.parent)).map((m) => { const [x1, y1] = place.get(m.parent), [x2, y2] = place.get(m.id); return html`<path class=${line.has(m.id) && line.has(m.parent) ? "strong" : ""} d=${`M${x1} ${y1}C${x1 + 45} ${y1} ${x2 - 45} ${y2} ${x2} ${y2}`} />`; })}
    ${rows.map((m) => { const [x, y] = place.get(m.id); return html`<circle class=${line.has(m.id) ? "strong" : ""} cx=${x} cy=${y} r="8" fill=${m.fitness == null ? "none" : shade((m.fitness - low) / (high - low || 1))} onClick=${() => choose(m.id)}><title>${`member ${m.id}: ${m.mutation}, fitness ${number(m.fitness)}`}</title></circle>`; })}
  </svg></div><p><b>member ${shown.id}</b> · ${shown.mutation} · fitness ${number(shown.fitness)} · ${Object.entries(JSON.parse(shown.change)).map(([name, [before, after]]) => `${name} ${shownGene(before)} → ${shownGene(after)}`).join(", ") || "nothing changed"}</p>`;
}

function shownGene(value) {
  return typeof value === "number" ? number(value) : visible(Array.isArray(value) ? value.join("×") : String(value));
}
