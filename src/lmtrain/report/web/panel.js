// Controls that write a command line, and a panel that shows the answer to it.
import { amount, curve, element } from "/charts.js";

export const power = (exponent) => 2 ** exponent;
export const rounded = (value) => Number((10 ** value).toPrecision(2));
export const dollars = (value) => `$${value.toLocaleString("en", { maximumFractionDigits: 2 })}`;
export const select = (key, name, options, start) => ({ key, name, options, start });
export const slider = (key, name, [least, most, step], start, value, show) => ({ key, name, least, most, step, start, value, show });
export const same = (value) => value;

export const BUDGETS = {
  tokens: "budget.tokens", "tokens per parameter": "budget.tokens_per_parameter", days: "budget.hours", dollars: "budget.usd",
};
export const HOLDERS = ["budget", "devices", "accumulation", "find", "work", "supply"]; // controls that are no key themselves

export class Panel {
  constructor(place, controls, { words, draw, extra = [] }) {
    Object.assign(this, { place, words, draw, extra, controls: {} });
    const form = place.querySelector("form");
    for (const control of controls) form.append(this.make(control));
    form.addEventListener("input", () => this.changed());
    form.addEventListener("submit", (event) => event.preventDefault());
    for (const button of place.querySelectorAll("button")) button.addEventListener("click", () => this.copy(button));
    this.tell("computing ...", "");
  }

  make(control) {
    const output = element("output");
    const input = control.options
      ? element("select", control.options.map((name) => element("option", name)), { name: control.key })
      : element("input", "", { type: "range", name: control.key, min: control.least, max: control.most, step: control.step });
    input.value = control.start;
    const label = element("label", [element("span", control.name), control.options ? "" : output, input]);
    this.controls[control.key] = { ...control, input, output, label };
    return label;
  }

  value(key) {
    const { input, value, typed } = this.controls[key];
    if (typed?.place === input.value) return typed.value; // between two places of the slider
    return value ? value(Number(input.value)) : input.value;
  }

  start(words) {
    for (const word of words) {
      const [key, text] = [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)];
      const control = this.controls[key];
      if (control?.options?.includes(text)) control.input.value = text;
      else if (control?.value && Number.isFinite(Number(text))) this.nearest(control, Number(text));
      else this.extra.push(word);
      const budget = Object.keys(BUDGETS).find((name) => BUDGETS[name] === key);
      if (budget && control) this.controls.budget.input.value = budget;
    }
  }

  nearest(control, wanted) {
    const places = [];
    for (let place = control.least; place <= control.most; place += control.step) places.push(place);
    const off = (place) => Math.abs(control.value(place) - wanted);
    control.input.value = places.reduce((best, place) => (off(place) < off(best) ? place : best));
    control.typed = { place: control.input.value, value: wanted };
  }

  changed(wait = 150) {
    for (const { key, show, input, output } of Object.values(this.controls)) {
      if (!show) continue;
      output.textContent = show(this.value(key));
      input.setAttribute("aria-valuetext", output.textContent);
    }
    this.asked = [...new Set([...this.words(this), ...this.extra])]; // each once
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(this.asked), wait);
  }

  show(key, isShown) {
    this.controls[key].label.hidden = !isShown;
  }

  async ask(words) {
    const slow = setTimeout(() => this.tell("counting this model on fake tensors, once; some seconds ...", ""), 1200);
    this.place.classList.add("asking");
    const response = await fetch(`/plan?${new URLSearchParams(words.map((word) => ["word", word]))}`).catch(() => null);
    clearTimeout(slow);
    if (this.asked !== words) return; // a later question is on its way
    this.place.classList.remove("asking");
    if (!response?.ok) return this.tell("lmtrain plan --web has ended; start it again", "bad");
    const found = await response.json();
    for (const code of this.place.querySelectorAll("code")) code.textContent = found[code.dataset.command] ?? "";
    this.place.classList.toggle("refused", Boolean(found.error));
    this.list(".advice", []);
    if (found.error) this.tell(found.error, "bad");
    else this.draw(this, found);
    this.place.dataset.answered = found.command;
  }

  tell(text, style) {
    const state = this.place.querySelector(".state");
    state.textContent = text;
    state.className = `state ${style}`;
  }

  list(selector, lines) {
    this.place.querySelector(selector).replaceChildren(...lines.map((line) => element("li", line)));
  }

  tiles(rows) {
    const made = rows.map(([value, name, isFound]) =>
      element("div", [element("b", value), element("span", name)], isFound ? { class: "found" } : {}));
    this.place.querySelector(".tiles").replaceChildren(...made);
  }

  chart(name, parts) {
    this.place.querySelector(`[data-chart=${name}]`).replaceChildren(...parts);
  }

  async copy(button) {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    const name = button.textContent;
    if (name === "Copied") return;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = name), 1200);
  }
}

export function drawTradeOff(panel, { curve: all, optimum, run }) {
  const points = all.filter((each) => each.loss !== null);
  if (points.length < 2) {
    panel.chart("trade_off", [element("p", "Too small for a predicted loss: the law was fitted to larger models on more tokens.")]);
    return;
  }
  const at = (size) => points.reduce((best, each) => (Math.abs(Math.log(each.num_parameters / size)) < Math.abs(Math.log(best.num_parameters / size)) ? each : best));
  const mark = (size, name, colour) => ({ x: at(size).num_parameters, y: at(size).loss, name, colour });
  const isNear = run.num_parameters >= points[0].num_parameters && run.num_parameters <= points.at(-1).num_parameters;
  const isSeen = optimum.num_parameters >= points[0].num_parameters && optimum.num_parameters <= points.at(-1).num_parameters;
  const marks = isSeen ? [mark(optimum.num_parameters, `optimum ${amount(optimum.num_parameters)}`, "var(--c1)")] : [];
  if (isNear) marks.push(mark(run.num_parameters, `this run, ${amount(run.num_parameters)}`, "var(--c5)"));
  const chart = curve(points.map((each) => ({ x: each.num_parameters, y: each.loss })), {
    showX: (value) => amount(value, 2), showY: (value) => value.toFixed(2), label: "predicted loss by parameters", marks, logY: false,
  });
  const far = isNear ? "" : ` This run's ${amount(run.num_parameters)} parameters on ${amount(run.tokens)} tokens are beyond the curve.`;
  panel.chart("trade_off", [...chart, element("p", `Predicted loss (nats a token) by parameters, each on the tokens that the FLOPs leave.${far}`)]);
}
