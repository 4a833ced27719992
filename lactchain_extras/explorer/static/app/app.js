// The page: screens behind tabs, and the way from one to another.

const SCREENS = [
  ["summary", "Summary", SummaryScreen, () => true],
  ["states", "States", StatesScreen, () => tables.answers.length],
  ["episodes", "Episodes", EpisodesScreen, () => tables.episodes.length],
  ["pairs", "Pairs", PairsScreen, () => tables.pairs.length],
  ["critic", "Critic", CriticScreen, () => valuedRows().length || ownSteps("value").some((value) => value != null)],
  ["tokens", "Token values", TokensScreen, () => tables.tokens.length],
  ["curves", "Curves", CurvesScreen, () => curveKeys().length],
  ["compare", "Compare", CompareScreen, () => facts.runs.length > 1 || sidesOf().length > 1],
  ["search", "Search", SearchScreen, () => tables.members.length],
  ["run", "Run", RunScreen, () => true],
];

let go = () => {}, recount = () => {};

/** The address of a screen and of what is looked at there; a frame within a page has none. */
function address(screen, wanted) {
  return `#${screen}${wanted ? `:${encodeURIComponent(JSON.stringify(wanted))}` : ""}`;
}

const addressed = location.protocol !== "about:";

/** Writes into the address what is looked at; before it is painted, so that no one copies an older one. */
function told(screen, wanted) {
  if (addressed) history.replaceState(null, "", address(screen, wanted));
}

/** The screen that the address names, and what is looked at; null where it names none of these. */
function placeOf(known) {
  const [, screen, wanted] = location.hash.match(/^#(\w+)(?::(.*))?$/) || [];
  if (!known.some(([id]) => id === screen)) return null;
  try {
    return [screen, wanted ? JSON.parse(decodeURIComponent(wanted)) : null];
  } catch {
    return [screen, null];
  }
}

function App() {
  const known = useMemo(() => SCREENS.filter(([, , , there]) => there()), []);
  const first = [known.some(([id]) => id === facts.screen) ? facts.screen : "summary", null];
  const [[screen, wanted], setPlace] = useState(() => placeOf(known) || first);
  const [, draw] = useState({});
  recount = () => draw({});
  go = (to, asked) => {
    if (!known.some(([id]) => id === to)) return;
    if (addressed) history.pushState(null, "", address(to, asked));
    setPlace([to, asked || null]);
    scrollTo({ top: 0 });
  };
  useEffect(() => {
    const back = () => setPlace(placeOf(known) || first);
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, []);
  useEffect(() => { document.getElementById("summary").hidden = screen !== "summary"; }, [screen]);
  useEffect(() => {
    const keys = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
      const place = Number(event.key) - 1;
      if (known[place]) { go(known[place][0]); document.getElementById(`tab-${known[place][0]}`).focus(); }
      if (event.key === "/") { const find = document.querySelector("input[type=search]"); if (find) { event.preventDefault(); find.focus(); } }
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);
  const tabKeys = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const place = (known.findIndex(([id]) => id === screen) + step + known.length) % known.length;
    go(known[place][0]);
    event.currentTarget.children[place].focus();
  };
  const Screen = SCREENS.find(([id]) => id === screen)[2];
  return html`<nav role="tablist" aria-label="screens" onKeyDown=${tabKeys}>${known.map(([id, name], n) => html`<button role="tab" id=${`tab-${id}`} aria-selected=${id === screen} tabindex=${id === screen ? 0 : -1} title=${`${name} (key ${n + 1})`} onClick=${() => go(id)}>${name}${badge(id)}</button>`)}</nav>
    <main id="screen"><${Screen} wanted=${wanted} key=${screen} /></main>`;
}

function badge(id) {
  const run = { episodes: kept.get("episodes filter")?.run, pairs: kept.get("pairs run") }[id] ?? "0";
  const count = id === "states" ? new Set(tables.answers.column("state")).size : ["episodes", "pairs"].includes(id) ? ofRun(id, run).length : 0;
  return count ? html` <small>${number(count)}</small>` : "";
}

/** Beside the sentences, which stand in the page itself: what was learnt as charts; one start state, before and after, playing. */
function SummaryScreen() {
  useEffect(() => {
    for (const button of document.querySelectorAll("#summary [data-go]")) {
      button.hidden = false;
      button.onclick = () => go(button.dataset.go, JSON.parse(button.dataset.with || "null"));
    }
    for (const side of document.querySelectorAll("#summary [data-episode]")) {
      render(html`<${Player} episode=${Number(side.dataset.episode)} compact=${true} autoplay=${true} />`, side);
    }
    render(html`<${Learnt} />`, document.querySelector("#summary .charts"));
  }, []);
  return null;
}

/** What the first screen shows the course of where there are no rounds, the best first. */
const COURSES = [["search/best_fitness", "search/fitness"], ["eval/episode_return"], ["rollout/episode_return"], ["train/loss"]];

/** Success over the rounds, or what a run without is judged by; and by distance, at both ends. */
function Learnt() {
  const { results, curves } = tables, told = (row) => results.at("success", row) != null;
  const of = (round) => rowsWith("results", "run", 0).filter((row) => told(row) && results.at("round", row) === round);
  const rounds = results.values("round").filter((round) => of(round).length);
  const share = (rows, most = Infinity) => mean(rows.map((row) => Number(results.at("success", row) && results.at("num_chains", row) <= most)));
  const overRounds = [["goal reached"], ["within 2", 2]].map(([label, most], n) => ({ label, x: rounds, y: rounds.map((round) => share(of(round), most)), colour: seriesColour(n) }));
  const own = rowsWith("curves", "run", 0).filter((row) => curves.at("stage", row) === "");
  const course = COURSES.map((keys) => own.filter((row) => keys.includes(curves.at("key", row)))).find((rows) => rows.length) || [];
  const series = rounds.length > 1 ? overRounds : course.map((row, n) => ({ label: visible(curves.at("key", row)), x: curves.at("steps", row), y: curves.at("values", row), colour: seriesColour(n) }));
  const ends = [...new Set([rounds[0], rounds.at(-1)])].map((round, n, all) => ({ label: roundName(round), colour: ["#9fb3c8", SERIES[0]].slice(-all.length)[n], bars: byShortest(of(round), share) }));
  return html`${series.length > 0 && html`<${Curves} title=${rounds.length > 1 ? "success over rounds" : series.map(({ label }) => label).join(" and ")} series=${series} xLabel=${rounds.length > 1 ? "round" : "step"} height=${170} />`}
    ${ends.some(({ bars }) => bars.length) && html`<${Bars} title="success by distance" groups=${ends} xLabel="shortest way, in actions" top=${1} />`}`;
}

function byShortest(rows, share) {
  const distances = [...new Set(rows.map((row) => tables.results.at("shortest", row)))].filter((distance) => distance != null).sort((a, b) => a - b);
  return distances.map((x) => {
    const here = rows.filter((row) => tables.results.at("shortest", row) === x);
    return { x, y: share(here), hint: `${x} actions: ${percent(share(here))} of ${number(here.length)}` };
  });
}

/** How it was run: stages, figures, configuration, machine; folded away elsewhere. */
function RunScreen() {
  const { stages } = tables;
  const own = rowsWith("stages", "run", 0);
  return html`<section class="screen" aria-label="run">
    <h3>Stages</h3><div class="scroll"><table id="stages"><thead><tr><th>stage</th><th>state</th><th class="number">minutes</th><th>figures</th></tr></thead><tbody>
      ${own.map((row) => html`<tr><th><${Text} text=${stages.at("stage", row) || "the run itself"} /></th><td>${stages.at("state", row)}</td><td class="number">${number(stages.at("minutes", row), 3)}</td><td><${Figures} text=${stages.at("summary", row)} /></td></tr>`)}
    </tbody></table></div>
    ${facts.sizes.length > 0 && html`<details id="sizes"><summary>${facts.sizes.length} numbers that followed from the world</summary><div class="scroll"><table><thead><tr><th>setting</th><th>number</th><th>why this one</th></tr></thead><tbody>
      ${facts.sizes.map((row) => html`<tr>${row.map((text) => html`<td><${Text} text=${text} /></td>`)}</tr>`)}
    </tbody></table></div></details>`}
    <details><summary>config.yaml</summary><pre><${Text} text=${facts.config} most=${20000} /></pre></details>
    <details><summary>environment.json</summary><pre><${Text} text=${facts.environment} most=${20000} /></pre></details>
  </section>`;
}

function Figures({ text }) {
  const figures = Object.entries(JSON.parse(text) || {}).filter(([, value]) => typeof value !== "object");
  if (!figures.length) return html`<span class="muted">–</span>`;
  return html`<details><summary>${figures.length} figures</summary><dl class="facts named">${figures.map(([name, value]) => html`<div><dt><${Text} text=${name} /></dt><dd>${typeof value === "number" ? number(value) : html`<${Text} text=${value} />`}</dd></div>`)}</dl></details>`;
}

async function start() {
  const app = document.getElementById("app");
  if (typeof DecompressionStream === "undefined") {
    app.textContent = "This browser cannot unpack the data of the page; a newer one shows every episode.";
    return;
  }
  await readTables();
  app.replaceChildren();
  render(html`<${App} />`, app);
  document.body.dataset.ready = "yes";
}

start();
