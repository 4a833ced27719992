// Charts: curves by uPlot; dots, bars and bins as SVG.

/** Curves over a common axis; `series` are {label, x, y, colour, dash}, of a band with low, high and their labels. The cursor stands `at` an x. */
function Curves({ title, series, log = false, xLabel = "step", height = 190, at = null, onPick = null }) {
  const box = useRef(null), drawnPlot = useRef(null);
  const dark = useDark();
  useLayoutEffect(() => {
    if (!box.current) return undefined;
    const { data, options } = curveOptions({ title, series, log, xLabel, height, width: box.current.clientWidth || 320, dark });
    const plot = new uPlot(options, data, box.current);
    drawnPlot.current = plot;
    const observer = new ResizeObserver(() => box.current && plot.setSize({ width: box.current.clientWidth, height }));
    observer.observe(box.current);
    return () => { observer.disconnect(); plot.destroy(); };
  }, [series, log, dark, height]);
  useEffect(() => { if (at != null) drawnPlot.current.setCursor({ left: drawnPlot.current.valToPos(at, "x"), top: 0 }); }, [at, series, dark]);
  const pressed = useRef(0);  // a drag zooms, and is no click
  const pick = (event) => { const { cursor, data } = drawnPlot.current; if (onPick && cursor.idx != null && Math.abs(event.clientX - pressed.current) < 4) onPick(data[0][cursor.idx]); };
  return html`<figure class="chart"><figcaption>${title}</figcaption><div ref=${box} onMouseDown=${(event) => { pressed.current = event.clientX; }} onClick=${pick} /></figure>`;
}

function useDark() {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(query.matches);
  useEffect(() => {
    const change = () => setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return dark;
}

function curveOptions({ series, log, xLabel, height, width, dark }) {
  const places = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const at = new Map(places.map((x, n) => [x, n]));
  const spread = (x, y) => {
    const filled = new Array(places.length).fill(undefined);
    x.forEach((value, n) => (filled[at.get(value)] = y[n] == null || (log && y[n] <= 0) ? null : y[n]));
    return filled;
  };
  const ink = dark ? "#9fb0c0" : "#5b6b7b";
  const grid = { stroke: dark ? "#2b3844" : "#e7ecf1", width: 1 };
  const data = [places], drawn = [{ label: xLabel, value: (_, x) => number(x) }], bands = [];
  for (const { label, x, y, colour, dash, low, high, lowLabel, highLabel } of series) {
    const few = x.length < 40;
    if (low) {
      data.push(spread(x, high), spread(x, low));
      bands.push({ series: [drawn.length, drawn.length + 1], fill: fade(colour) });
      drawn.push({ show: true, label: highLabel, stroke: "transparent", points: { show: false } }, { show: true, label: lowLabel, stroke: "transparent", points: { show: false } });
    }
    data.push(spread(x, y));
    drawn.push({ label, stroke: colour, dash, width: 1.6, spanGaps: false, points: { show: few, size: 5, fill: colour }, value: (_, v) => number(v) });
  }
  const axis = { stroke: ink, grid, ticks: grid, font: "11px system-ui", size: 34 };
  const options = {
    width, height, series: drawn, bands,
    scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
    axes: [{ ...axis, size: 30, ...(places.every(Number.isInteger) ? { incrs: WHOLE } : {}) }, { ...axis, size: (_, labels) => Math.max(52, roomFor(labels || [])), values: (_, values) => values.map((v) => (v == null ? "" : number(v, 3))) }],
    legend: { show: series.length < 9, live: true, markers: { dash: (plot, n) => (plot.series[n].dash ? "dashed" : "solid") } },
    cursor: { drag: { x: true, y: false }, points: { size: 6 } },
    padding: [null, Math.max(52, roomFor(series.flatMap(({ y }) => y.slice(-1)).map((v) => number(v, 3)))), null, null],
    // Where no cursor is, the legend shows the last values.
    hooks: { draw: [nameEnds], ready: [showLast], setCursor: [(plot) => plot.cursor.idx == null && showLast(plot)] },
  };
  return { data, options };
}

/** Pixels that the longest of some labels takes beside a chart. */
function roomFor(labels) {
  return 16 + 7 * Math.max(0, ...labels.map((label) => String(label ?? "").length));
}

function showLast(plot) {
  if (plot.data[0].length) plot.setLegend({ idx: plot.data[0].length - 1 });
}

const MOST_ENDS = 6, LINE = 12;

/** Writes the last value in sight of each curve to its right; of very many curves that of the last. */
function nameEnds(plot) {
  const { ctx, bbox, data, scales } = plot, ratio = devicePixelRatio || 1;
  const named = plot.series.slice(1).map((line, n) => ({ shown: line.show, colour: line.stroke(plot, n + 1), values: data[n + 1] })).filter(({ shown, colour }) => shown && colour !== "transparent");
  const ends = (named.length > MOST_ENDS ? named.slice(-1) : named).map(({ colour, values }) => {
    const last = values.findLastIndex((value, n) => value != null && data[0][n] <= scales.x.max);
    return last < 0 ? null : { colour, value: values[last], y: plot.valToPos(values[last], "y", true) };
  }).filter(Boolean).sort((a, b) => a.y - b.y);
  ends.forEach((end, n) => { if (n) end.y = Math.max(end.y, ends[n - 1].y + LINE * ratio); });
  ends.reduceRight((limit, end) => { end.y = Math.min(end.y, limit); return end.y - LINE * ratio; }, bbox.top + bbox.height);
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  for (const { colour, value, y } of ends) {
    ctx.fillStyle = colour;
    ctx.fillText(number(value, 3), bbox.left + bbox.width + 6 * ratio, y);
  }
  ctx.restore();
}

const WHOLE = [1, 2, 5].flatMap((n) => Array.from({ length: 9 }, (_, power) => n * 10 ** power)).sort((a, b) => a - b);

function fade(colour) {
  return colour.startsWith("#") ? `${colour}33` : colour.replace(")", " / 0.2)");
}

/** Running mean by an exponential weight, as everybody's smoothing slider does it. */
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = null, bias = 1;
  return values.map((value) => {
    if (value == null) return null;
    mean = (mean ?? 0) * weight + (1 - weight) * value;
    bias *= weight;
    return mean / (1 - bias);
  });
}

// --- dots, bars ----------------------------------------------------------------------------------

const PLOT = { width: 340, height: 250, left: 50, right: 12, top: 10, bottom: 38 };

function range(values, room = 0.05) {
  const finite = values.filter((value) => Number.isFinite(value));
  if (!finite.length) return [0, 1];
  const low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  const span = high - low || Math.max(Math.abs(high), 1);
  return [low - room * span, high + room * span];
}

function roundNumbers([low, high], count = 5) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const marks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) marks.push(n * step + 0);
  return marks;
}

function Plot({ title, x, y, xLabel, yLabel, children, xMarks }) {
  const { width, height, left, right, top, bottom } = PLOT;
  const px = (value) => left + ((value - x[0]) / (x[1] - x[0])) * (width - left - right);
  const py = (value) => height - bottom - ((value - y[0]) / (y[1] - y[0])) * (height - top - bottom);
  return html`<figure class="chart"><figcaption>${title}</figcaption>
    <svg viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${title} class="plot">
      ${roundNumbers(y).map((v) => html`<path class="gridline" d=${`M${left} ${py(v)}H${width - right}`} /><text x=${left - 6} y=${py(v) + 4} text-anchor="end">${number(v, 3)}</text>`)}
      ${(xMarks || roundNumbers(x).map((v) => [v, number(v, 3)])).map(([v, name]) => html`<text x=${px(v)} y=${height - bottom + 15} text-anchor="middle">${name}</text>`)}
      <text class="axis" x=${(left + width - right) / 2} y=${height - 4} text-anchor="middle">${xLabel}</text>
      ${yLabel && html`<text class="axis" transform=${`translate(11 ${(top + height - bottom) / 2}) rotate(-90)`} text-anchor="middle">${yLabel}</text>`}
      ${children(px, py)}
    </svg></figure>`;
}

/** Dots that can be clicked; on the diagonal both numbers agree. */
function Dots({ title, points, xLabel, yLabel, onClick, diagonal = true, selected }) {
  const shown = points.length > 3000 ? points.filter((_, n) => n % Math.ceil(points.length / 3000) === 0) : points;
  const isChosen = (p) => selected != null && p.id === selected;
  const both = range(points.flatMap((p) => [p.x, p.y]));
  const xs = diagonal ? both : range(points.map((p) => p.x)), ys = diagonal ? both : range(points.map((p) => p.y));
  return html`<${Plot} title=${title} x=${xs} y=${ys} xLabel=${xLabel} yLabel=${yLabel}>${(px, py) => html`
    ${diagonal && html`<path class="diagonal" d=${`M${px(both[0])} ${py(both[0])}L${px(both[1])} ${py(both[1])}`} />`}
    ${shown.map((p) => html`<circle class=${`dot ${isChosen(p) ? "selected" : ""}`} cx=${px(p.x)} cy=${py(p.y)} r=${isChosen(p) ? 5 : 2.8} fill=${p.colour || SERIES[0]} onClick=${() => onClick && onClick(p)}><title>${p.hint}</title></circle>`)}`}<//>`;
}

/** Bars of {x, y, hint, colour}, side by side where several have one x. */
function Bars({ title, groups, xLabel, yLabel, top = null }) {
  const names = [...new Set(groups.flatMap(({ bars }) => bars.map((bar) => bar.x)))].sort((a, b) => (typeof a === "number" ? a - b : naturally(a, b)));
  const place = new Map(names.map((name, n) => [name, n]));
  const values = groups.flatMap(({ bars }) => bars.map((bar) => bar.y));
  const y = [Math.min(0, ...values), top ?? (Math.max(0, ...values) * 1.05 || 1)];
  const every = Math.ceil(names.length / 14);
  const marks = names.map((name, n) => [n, name]).filter(([n]) => n % every === 0).map(([n, name]) => [n, typeof name === "number" ? number(name, 3) : name]);
  return html`<${Plot} title=${title} x=${[-0.6, names.length - 0.4]} y=${y} xLabel=${xLabel} yLabel=${yLabel} xMarks=${marks}>${(px, py) =>
    groups.map(({ label, colour, bars }, n) => bars.map((bar) => {
      const width = (px(0.84) - px(0)) / groups.length, left = px(place.get(bar.x) - 0.42) + n * width;
      return html`<rect class="bar" x=${left} width=${Math.max(1, width - 1)} y=${Math.min(py(bar.y), py(0))} height=${Math.max(0.5, Math.abs(py(bar.y) - py(0)))} fill=${colour}><title>${bar.hint || `${label} ${bar.x}: ${number(bar.y)}`}</title></rect>`;
    }))}<//>${groups.length > 1 && html`<p class="muted">${groups.map(({ label, colour }) => html`<b style=${{ color: colour }}>■</b> ${label} `)}</p>`}`;
}

/** How often numbers occur. */
function Histogram({ title, values, xLabel, colour = SERIES[0] }) {
  const finite = values.filter((value) => Number.isFinite(value));
  const [low, high] = range(finite, 0.001), count = 30, bins = new Array(count).fill(0);
  finite.forEach((value) => bins[Math.min(count - 1, Math.floor(((value - low) / (high - low)) * count))]++);
  const edge = (n) => low + (n * (high - low)) / count;
  return html`<${Plot} title=${title} x=${[low, high]} y=${[0, Math.max(1, ...bins) * 1.05]} xLabel=${xLabel} yLabel="count">${(px, py) =>
    bins.map((size, n) => html`<rect class="bar" x=${px(edge(n))} width=${Math.max(1, px(edge(n + 1)) - px(edge(n)) - 1)} y=${py(size)} height=${py(0) - py(size)} fill=${colour}><title>${`${number(edge(n))} to ${number(edge(n + 1))}: ${size}`}</title></rect>`)}<//>`;
}
