// Values of tokens along an episode: Q(s, token), V(s) and the advantage, by a value model.

const SHADES = { advantage: "advantage, Q − V", q: "Q(s, token)", v: "V(s) before the token" };
const REASONS = ["best", "worst", "first"];

/** The episodes that are kept, each as the rows of its decisions; the best first. */
function valuedEpisodes() {
  const found = new Map(), { tokens } = tables;
  tokens.column("episode").forEach((number, row) => {
    const key = `${tokens.at("stage", row)} ${number}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(row);
  });
  const rank = ([row]) => REASONS.indexOf(tokens.at("chosen", row));
  return [...found.values()].sort((a, b) => rank(a) - rank(b));
}

function valuedLabel([row]) {
  const { chosen, episode, stage, return: earned } = tables.tokens.row(row);
  return `${chosen === "first" ? "" : `the ${chosen}: `}episode ${number(episode)}${stage ? ` of ${stage}` : ""}, return ${number(earned)}`;
}

/** The tokens of some decisions, one after another. */
function tokensOf(rows) {
  return rows.flatMap((row) => {
    const { tokens, q, v } = tables.tokens.row(row);
    return tokens.map((text, n) => ({ text, row, q: q[n], v: v[n], advantage: q[n] - v[n] }));
  });
}

function TokensScreen() {
  const episodes = useMemo(valuedEpisodes, []);
  const everything = useMemo(() => tokensOf(episodes.flat()), []);
  const [place, setPlace] = useKept("tokens episode", 0);
  const [by, setBy] = useKept("tokens shade", "advantage");
  const [at, setAt] = useState(0);
  const tokens = useMemo(() => tokensOf(episodes[place]), [place]);
  const curves = useMemo(() => [[["q", "v"], "Q(s, token) and V(s)"], [["advantage"], "advantage"]].map(([names, title]) => ({
    title, series: names.map((name, n) => ({ label: name === "advantage" ? name : name.toUpperCase(), x: tokens.map((_, t) => t + 1), y: tokens.map((token) => token[name]), colour: seriesColour(n) })),
  })), [tokens]);
  const fill = useMemo(() => shadeOf(everything.map((token) => token[by]), by === "advantage"), [by]);
  const { method, gamma } = facts.valued[tables.tokens.at("stage", episodes[place][0])];
  const here = tokens[Math.min(at, tokens.length - 1)], state = sceneOf(tables.tokens.at("state", here.row));
  const take = (next) => { setPlace(Number(next)); setAt(0); };
  const keys = (event) => {
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (next == null) return;
    event.preventDefault();
    event.currentTarget.querySelector(`[data-token="${Math.min(tokens.length - 1, Math.max(0, next))}"]`).focus();
  };
  let count = 0;
  return html`<section class="screen" aria-label="token values">
    <div class="filters">
      <${Choice} id="valued-episode" label="episode" value=${place} onChange=${take} options=${episodes.map((rows, n) => [n, valuedLabel(rows)])} />
      <${Choice} id="token-shade" label="shade" value=${by} onChange=${setBy} options=${Object.entries(SHADES)} />
      <span class="muted">By ${method.toUpperCase()}, discounted by ${number(gamma)} per token. Each token of an answer is a step: Q is what it is worth to say it, V what the text before it is worth.</span></div>
    <p id="token-value" role="status">token ${at + 1} of ${tokens.length}, <code><bdi>${shownToken(here.text)}</bdi></code>: Q <b>${number(here.q)}</b> · V <b>${number(here.v)}</b> · advantage <b>${signed(Number(here.advantage.toPrecision(4)))}</b></p>
    <div class="charts curves">${curves.map(({ title, series }) => html`<${Curves} key=${title} title=${title} series=${series} xLabel="token" height=${170} at=${at + 1} onPick=${(x) => setAt(x - 1)} />`)}
      ${state?.agent && html`<figure class="chart valued"><figcaption>where it is said</figcaption><${Board} scene=${state} agent=${state.agent} label="the state before this answer" /></figure>`}</div>
    <div class="scroll"><table class="valued" aria-label="tokens of the episode; the arrow keys move" onKeyDown=${keys}><thead><tr><th></th><th>prompt</th><th>completion</th><th class="number">reward</th></tr></thead><tbody>
      ${episodes[place].map((row) => html`<tr class=${row === here.row ? "selected" : ""}><td>${tables.tokens.at("decision", row) + 1}</td><td><pre class="prompt"><${Text} text=${tables.tokens.at("prompt", row)} most=${600} /></pre></td>
        <td><code class="completion">${tokens.filter((token) => token.row === row).map((token) => html`<${ValuedToken} key=${count} n=${count++} token=${token} name=${by} at=${at} fill=${fill} onAt=${setAt} />`)}</code></td>
        <td class="number">${number(tables.tokens.at("reward", row))}</td></tr>`)}</tbody></table></div>
    ${Object.entries(facts.valued).map(([stage, { episodes: shown, of, most_decisions: most }]) => html`<p class="muted">${stage && `${stage}: `}${number(shown)} of ${number(of)} episodes: the best and the worst by their return, and the first others; of each at most ${most} answers.</p>`)}
  </section>`;
}

function ValuedToken({ token, n, name, at, fill, onAt }) {
  const [background, color] = fill(token[name]);
  const told = `Q ${number(token.q)}, V ${number(token.v)}, advantage ${signed(Number(token.advantage.toPrecision(4)))}`;
  return html`<span class=${`token ${n === at ? "now" : ""}`} role="button" data-token=${n} tabindex=${n === at ? 0 : -1} style=${{ background, color }} title=${told} aria-label=${`${visible(token.text)} ${told}`}
    onMouseEnter=${() => onAt(n)} onFocus=${() => onAt(n)} onClick=${() => onAt(n)}><bdi>${shownToken(token.text)}</bdi></span>`;
}

function shownToken(text) {
  return text === "" ? "·" : visible(text).replace(/\n/g, "⏎");
}

/** From a number to background and ink, on one scale for all episodes. */
function shadeOf(values, isSigned) {
  const biggest = Math.max(...values.map(Math.abs), 1e-9), [low, high] = range(values, 0);
  return (value) => {
    const share = isSigned ? value / biggest : (value - low) / (high - low);
    return [isSigned ? diverging(share) : shade(share), inkOn(share, isSigned)];
  };
}
