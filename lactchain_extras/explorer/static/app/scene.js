// Boards: a state of a world as its picture describes it, the ways of chains, numbers of cells.

const HEADINGS = [[0, -1], [1, 0], [0, 1], [-1, 0]];
const SIZE = 40;

function sceneOf(state) {
  if (state == null || !facts.picture) return null;
  const row = tables.states.row(state);
  return row.marks ? row : null;
}

/** A board: background, marks, ways and the agent; a cell may be clicked. */
function Board({ scene, agent, ways = [], seen = null, heat = null, onCell = null, axes = false, label = "board" }) {
  const { width, height, background } = facts.picture;
  const marks = scene ? scene.marks : [];
  const fixed = ["wall", "fence"];
  const chosen = (heat || []).find((place) => place.chosen), edge = 3, before = axes ? 16 : edge;
  const under = background.filter((mark) => !fixed.includes(mark[2]));
  return html`<svg class="board" role=${onCell ? "group" : "img"} aria-label=${label}
      viewBox=${`${-before} ${-before} ${width * SIZE + before + edge} ${height * SIZE + before + edge}`} style=${{ maxWidth: `${Math.max(90, width * 64)}px` }}>
    <rect class="floor" width=${width * SIZE} height=${height * SIZE} />
    ${under.map((mark) => html`<${Mark} mark=${mark} />`)}
    ${heat && html`<${Heat} heat=${heat} />`}
    <${Lines} width=${width} height=${height} />
    ${background.filter((mark) => fixed.includes(mark[2])).map((mark) => html`<${Mark} mark=${mark} />`)}
    ${marks.map((mark) => html`<${Mark} mark=${mark} over=${heat} />`)}
    ${seen && html`<${Fog} seen=${seen} />`}
    ${ways.map((way) => html`<${Way} ...${way} />`)}
    ${agent && html`<${Agent} at=${agent} />`}
    ${axes && html`<${Axes} width=${width} height=${height} />`}
    ${chosen && html`<polygon class="outline" points=${cornersOf(chosen)} />`}
    ${onCell && html`<${Cells} onCell=${onCell} heat=${heat} />`}
  </svg>`;
}

function Lines({ width, height }) {
  const path = [];
  for (let x = 0; x <= width; x++) path.push(`M${x * SIZE} 0V${height * SIZE}`);
  for (let y = 0; y <= height; y++) path.push(`M0 ${y * SIZE}H${width * SIZE}`);
  return html`<path class="lines" d=${path.join("")} />`;
}

/** The numbers of columns and rows, (0, 0) at the upper left. */
function Axes({ width, height }) {
  const across = Array.from({ length: width }, (_, x) => html`<text class="axis" x=${(x + 0.5) * SIZE} y="-5" text-anchor="middle">${x}</text>`);
  const down = Array.from({ length: height }, (_, y) => html`<text class="axis" x="-5" y=${(y + 0.5) * SIZE + 4} text-anchor="end">${y}</text>`);
  return html`<g aria-hidden="true">${across}${down}</g>`;
}

function Mark({ mark: [x, y, kind, text], over }) {
  const left = x * SIZE, top = y * SIZE;
  if (kind === "fence") return html`<path class="fence" d=${`M${left + SIZE} ${top}v${SIZE}`} />`;
  if (kind === "goal") {
    return html`<g class="goal" transform=${`translate(${left} ${top})`}><title>goal (${x}, ${y})</title>
      <path class="pole" d="M12 8V34" /><path class="flag" d="M12 8L32 14.5L12 21Z" /></g>`;
  }
  if (kind === "struck") {
    return html`<text class="struck" x=${(facts.picture.width * SIZE) / 2} y=${top + 26} text-anchor="middle">${clipped(text, 24)}</text>`;
  }
  return html`<g><rect class=${`mark ${kind}`} x=${left + 1} y=${top + 1} width=${SIZE - 2} height=${SIZE - 2} opacity=${over ? 0.5 : 1} />
    ${text && html`<text class=${`letter ${kind}`} x=${left + SIZE / 2} y=${top + 27} text-anchor="middle">${clipped(text, 3)}</text>`}</g>`;
}

/** What the agent has not come near to. */
function Fog({ seen }) {
  const { width, height } = facts.picture;
  const hidden = [];
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) if (!seen.has(`${x},${y}`)) hidden.push(`M${x * SIZE} ${y * SIZE}h${SIZE}v${SIZE}h${-SIZE}z`);
  return html`<path class="fog" d=${hidden.join("")} />`;
}

/** The line of one chain; staying somewhere shows as a ring. */
function Way({ from, way, order = 0, faint = false, colour }) {
  const shift = ((order % 5) - 2) * 2.6;
  const points = (from ? [from, ...way] : way).map(([x, y]) => [(x + 0.5) * SIZE + shift, (y + 0.5) * SIZE + shift]);
  if (points.length < 2) return null;
  const stroke = colour || seriesColour(order);
  const stays = points.slice(1).filter((point, n) => point[0] === points[n][0] && point[1] === points[n][1] && (!way[n] || !(from ? [from, ...way] : way)[n] || String(way[n].slice(2)) === String((from ? [from, ...way] : way)[n].slice(2))));
  const [x, y] = points[points.length - 1];
  return html`<g opacity=${faint ? 0.35 : 0.95}>
    <polyline class="way" points=${points.map((p) => p.join(",")).join(" ")} stroke=${stroke} />
    ${stays.map((p) => html`<circle class="bump" cx=${p[0]} cy=${p[1]} r="9" />`)}
    <circle cx=${x} cy=${y} r="4" fill=${stroke} /></g>`;
}

function Agent({ at: [x, y, heading] }) {
  const place = `translate(${(x + 0.5) * SIZE}px, ${(y + 0.5) * SIZE}px)`;
  if (heading == null) return html`<g class="agent" style=${{ transform: place }}><circle r="9.5" /></g>`;
  return html`<g class="agent" style=${{ transform: `${place} rotate(${heading * 90}deg)` }}><path d="M0 -13L10 10L0 5L-10 10Z" /></g>`;
}

/** The corners of a cell; where headings matter, of one of its sides. */
function cornersOf({ x, y, heading }) {
  const half = SIZE / 2, [dx, dy] = heading == null ? [] : HEADINGS[heading];
  const corners = heading == null ? [[-1, -1], [1, -1], [1, 1], [-1, 1]] : [[0, 0], [dx - dy, dx + dy], [dx + dy, dy - dx]];
  return corners.map(([a, b]) => `${(x + 0.5) * SIZE + half * a},${(y + 0.5) * SIZE + half * b}`).join(" ");
}

/** Numbers of cells as colours; where headings matter, each side of a cell is one. */
function Heat({ heat }) {
  return heat.map((place) => {
    const { x, y, heading, fill, hint, chosen, text, ink } = place;
    return html`<g><polygon points=${cornersOf(place)} fill=${fill} class=${`${heading == null ? "" : "side"} ${chosen ? "chosen" : ""}`}><title>${hint}</title></polygon>
      ${text && html`<text class="value" x=${(x + 0.5) * SIZE} y=${(y + 0.5) * SIZE + 4} text-anchor="middle" fill=${ink}>${text}</text>`}</g>`;
  });
}

/** What can be clicked or reached by Tab: cells, or their sides. */
function Cells({ onCell, heat }) {
  return (heat || []).map((place) => {
    const press = (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), onCell(place));
    return html`<polygon class="hit" role="button" tabindex="0" aria-label=${place.hint} aria-pressed=${Boolean(place.chosen)} points=${cornersOf(place)}
      onClick=${() => onCell(place)} onKeyDown=${press}><title>${place.hint}</title></polygon>`;
  });
}

/** Cells around those that an agent has been to; null where it sees all. */
function seenFrom(positions) {
  if (!facts.picture || !facts.picture.fog) return null;
  const seen = new Set();
  for (const [x, y] of positions) for (let dx = -1; dx <= 1; dx++) for (let dy = -1; dy <= 1; dy++) if (!dx || !dy) seen.add(`${x + dx},${y + dy}`);
  return seen;
}
