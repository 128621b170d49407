// Draws what `lmtrain plan` answered. No quantity is computed here: only places, colours and words.

export function element(name, content = "", attributes = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (Array.isArray(content)) made.append(...content);
  else made.textContent = content;
  return made;
}

export function amount(value, digits = 3) {
  const steps = [[1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]];
  const [size, suffix] = steps.find(([size]) => Math.abs(value) >= size * 0.9995) ?? [1, ""];
  return `${Number((value / size).toPrecision(digits))}${suffix}`;
}

export const bytes = (value) => {
  const [size, unit] = value >= 1e12 ? [1e12, "TB"] : value >= 1e9 ? [1e9, "GB"] : [1e6, "MB"];
  return `${Number((value / size).toPrecision(3)).toLocaleString("en")} ${unit}`;
};

export function seconds(value) {
  const [size, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${Number((value / size).toPrecision(3))} ${unit}`;
}

export function days(value) {
  if (value >= 1) return `${Number(value.toPrecision(3)).toLocaleString("en")} days`;
  return value * 24 >= 1 ? `${Number((value * 24).toPrecision(3))} hours` : `${Number((value * 1440).toPrecision(3))} min`;
}

const words = (name) => name.replaceAll("_", " ");

export function stackedBar(parts, limit) {
  const shown = Object.entries(parts).filter(([, size]) => size > 0);
  const total = shown.reduce((sum, [, size]) => sum + size, 0);
  const whole = Math.max(total, limit ?? 0) * 1.02;
  const pieces = shown.map(([name, size], index) =>
    element("i", "", { style: `width:${(size / whole) * 100}%;background:var(--c${index})`, title: `${words(name)} ${bytes(size)}` }));
  if (limit) {
    const mark = element("u", [element("span", `the device has ${bytes(limit)}`)], { style: `left:${(limit / whole) * 100}%` });
    pieces.push(mark);
  }
  const label = `${bytes(total)} in all: ${shown.map(([name, size]) => `${words(name)} ${bytes(size)}`).join(", ")}`;
  const legend = shown.map(([name, size], index) =>
    element("span", [`${words(name)} `, element("b", bytes(size))], { style: `--colour:var(--c${index})` }));
  return [element("div", pieces, { class: "stack", role: "img", "aria-label": label }), element("div", legend, { class: "legend" })];
}

export function bars(rows, show) {
  const most = Math.max(...rows.map((row) => row.value), Number.MIN_VALUE);
  const cells = rows.flatMap((row) => {
    const bar = element("i", "", { style: `left:0;width:${(row.value / most) * 100}%` });
    return [element("span", words(row.name)), element("div", [bar], { class: "track" }), element("span", show(row.value))];
  });
  return [element("div", cells, { class: "bars" })];
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Both axes are logarithmic, or the upper one linear; `marks` are points with a name, which stands below: nothing but
// lines and dots is in the plot, and what is written has one size on every screen.
export function curve(points, { showX, showY, label, marks = [], logY = true }) {
  const [width, height] = [400, 200];
  const flat = logY ? Math.log : (value) => value;
  const all = [...points, ...marks];
  const [xs, ys] = [all.map((point) => Math.log(point.x)), all.map((point) => flat(point.y))];
  const spread = (values) => [Math.min(...values), Math.max(...values)];
  const [x0, x1] = spread(xs), [y0, y1] = spread(ys);
  const share = (value, low, high) => (value - low) / (high - low || 1);
  const right = (point) => share(Math.log(point.x), x0, x1), down = (point) => 1 - share(flat(point.y), y0, y1);
  const percent = (value) => `${(value * 100).toFixed(2)}%`;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const thirds = [0, 1 / 3, 2 / 3, 1];
  for (const y of thirds) {
    drawn.append(svg("line", { x1: 0, x2: width, y1: y * height, y2: y * height, stroke: "var(--rule)" }));
  }
  const path = points.map((point) => `${(right(point) * width).toFixed(1)},${(down(point) * height).toFixed(1)}`).join(" ");
  drawn.append(svg("polyline", { points: path, fill: "none", stroke: "var(--c0)", "stroke-width": 2.5 }));
  const upper = thirds.map((place) => {
    const value = y1 - place * (y1 - y0);
    return element("span", showY(logY ? Math.exp(value) : value), { class: "up", style: `top:${percent(place)}` });
  });
  const lower = thirds.map((place) =>
    element("span", showX(Math.exp(x0 + place * (x1 - x0))), { class: "across", style: `left:${percent(place)}` }));
  const dots = marks.map((mark, index) => {
    const style = `left:${percent(right(mark))};top:${percent(down(mark))};background:${mark.colour}`;
    return element("span", "", { class: index < marks.length - 1 ? "mark under" : "mark", style });
  });
  const gutter = Math.max(...upper.map((each) => each.textContent.length));
  const named = marks.map((mark) => element("span", mark.name, { style: `--colour:${mark.colour}` }));
  return [
    element("div", [drawn, ...upper, ...lower, ...dots], { class: "plot", role: "img", "aria-label": label, style: `--gutter:${gutter}ch` }),
    element("div", named, { class: "legend" }),
  ];
}
