// Sliders write a command line; the answer to it is drawn. All accounting is `lmtrain plan`'s.
import { amount, bars, bytes, curve, days, element, kilowattHours, products, ranges, stackedBar } from "/charts.js";

const power = (exponent) => 2 ** exponent;
const rounded = (value) => Number((10 ** value).toPrecision(2));
const dollars = (value) => `$${value.toLocaleString("en", { maximumFractionDigits: 2 })}`;
const select = (key, name, options, start) => ({ key, name, options, start });
const slider = (key, name, [least, most, step], start, value, show) => ({ key, name, least, most, step, start, value, show });
const same = (value) => value;

function runControls({ options, devices }) {
  return [
    select("model", "Model", options.model, "llama_3_8b"),
    slider("model.depth", "Depth", [4, 32, 2], 12, same, (value) => `${value} layers`),
    select("budget", "Ends by", ["tokens", "tokens per parameter", "days", "dollars"], "tokens"),
    slider("budget.tokens", "Tokens", [8, 13.5, 0.05], 11.2, rounded, (value) => amount(value)),
    slider("budget.tokens_per_parameter", "Tokens per parameter", [1, 1000, 1], 20, same, String),
    slider("budget.hours", "Days", [0.25, 120, 0.25], 14, (value) => value * 24, (value) => `${value / 24} days`),
    slider("budget.usd", "Dollars", [1, 8, 0.05], 4, rounded, dollars),
    select("cluster.device", "Device", devices, "NVIDIA H100 80GB HBM3"),
    slider("devices", "Devices", [0, 14, 1], 6, power, (value) => value.toLocaleString("en")),
    slider("cluster.mfu", "MFU (PaLM)", [5, 70, 1], 40, (value) => value / 100, (value) => `${Math.round(value * 100)}%`),
    slider("cluster.usd_per_gpu_hour", "Price of a device and hour", [0, 12, 0.1], 2.5, same, dollars),
    select("precision", "Precision", options.precision.filter((name) => name !== "auto"), "bf16_mixed"),
    select("strategy", "Strategy", options.strategy.filter((name) => name !== "auto"), "fsdp"),
    select("recompute", "Recompute", options.recompute, "none"),
    select("optimizer", "Optimizer", options.optimizer, "adamw"),
    slider("batch.context_tokens", "Context", [8, 17, 1], 13, power, (value) => `${value.toLocaleString("en")} tokens`),
    slider("batch.micro_batch_sequences", "Sequences at a time", [0, 8, 1], 0, power, String),
    slider("accumulation", "Micro-steps a step", [0, 8, 1], 0, power, String),
  ];
}

function fleetControls({ options, devices }) {
  const percent = (value) => `${Math.round(value * 100)}%`;
  return [
    select("find", "Find", ["model and tokens", "model", "tokens", "devices", "days", "MFU", "cost"], "model and tokens"),
    select("work", "Work given as", Object.keys(WORK), "model and tokens"),
    select("supply", "Devices given as", Object.keys(SUPPLY), "devices and days"),
    slider("fleet.flops", "FLOPs", [18, 27, 0.05], 23, rounded, (value) => value.toExponential(1)),
    slider("fleet.num_parameters", "Parameters", [7, 13, 0.02], 9.9, rounded, (value) => amount(value)),
    slider("fleet.tokens", "Tokens", [8, 14, 0.05], 11.2, rounded, (value) => amount(value)),
    slider("fleet.tokens_per_parameter", "Tokens per parameter", [1, 1000, 1], 20, same, String),
    select("fleet.device", "Device", devices, "NVIDIA H100 80GB HBM3"),
    select("precision", "Precision", options.precision.filter((name) => name !== "auto"), "bf16_mixed"),
    slider("fleet.num_devices", "Devices", [0, 14, 1], 5, power, (value) => value.toLocaleString("en")),
    slider("fleet.days", "Days", [0.25, 120, 0.25], 14, same, (value) => `${value} days`),
    slider("fleet.usd", "Dollars", [1, 8, 0.05], 5, rounded, dollars),
    slider("fleet.mfu", "MFU", [5, 70, 1], 40, (value) => value / 100, percent),
    slider("to", "MFU, up to", [5, 70, 1], 5, (value) => value / 100, percent),
    slider("fleet.usd_per_gpu_hour", "Price of a device and hour", [0, 12, 0.1], 2.5, same, dollars),
  ];
}

// Terms given on either side of the equation: what is computed, and what computes it.
const WORK = {
  "model and tokens": ["fleet.num_parameters", "fleet.tokens"],
  "model and tokens per parameter": ["fleet.num_parameters", "fleet.tokens_per_parameter"],
  FLOPs: ["fleet.flops"],
};
const SUPPLY = { "devices and days": ["fleet.num_devices", "fleet.days"], dollars: ["fleet.usd"] };
const FOUND_WORK = {
  "model and tokens": ["fleet.tokens_per_parameter"], model: ["fleet.tokens"], tokens: ["fleet.num_parameters"],
};
const FOUND_SUPPLY = { devices: ["fleet.days"], days: ["fleet.num_devices"], MFU: SUPPLY["devices and days"], cost: [] };
const BUDGETS = {
  tokens: "budget.tokens", "tokens per parameter": "budget.tokens_per_parameter", days: "budget.hours", dollars: "budget.usd",
};
const HOLDERS = ["budget", "devices", "accumulation", "find", "work", "supply", "to"]; // controls that are no key themselves

class Panel {
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
    const { input, value } = this.controls[key];
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
  }

  changed(wait = 150) {
    for (const { key, show, input, output } of Object.values(this.controls)) {
      if (!show) continue;
      output.textContent = show(this.value(key));
      input.setAttribute("aria-valuetext", output.textContent);
    }
    this.asked = [...this.words(this), ...this.extra];
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

function runWords(panel) {
  const devices = panel.value("devices"), perNode = Math.min(8, devices);
  const budget = BUDGETS[panel.value("budget")];
  for (const key of Object.values(BUDGETS)) panel.show(key, key === budget);
  panel.show("model.depth", panel.value("model") === "nano");
  const sequences = panel.value("batch.micro_batch_sequences") * panel.value("accumulation") * devices;
  const given = Object.values(panel.controls)
    .filter(({ key, label }) => !label.hidden && !HOLDERS.includes(key))
    .map(({ key }) => `${key}=${panel.value(key)}`);
  return [
    given[0], "cluster=h100_8x", `cluster.num_nodes=${devices / perNode}`, `cluster.devices_per_node=${perNode}`,
    ...given.slice(1), `batch.tokens_per_step=${sequences * panel.value("batch.context_tokens")}`,
  ];
}

function fleetWords(panel) {
  const find = panel.value("find"), isWork = find in FOUND_WORK;
  const given = new Set([
    ...(FOUND_WORK[find] ?? WORK[panel.value("work")]), ...(FOUND_SUPPLY[find] ?? SUPPLY[panel.value("supply")]),
    "fleet.device", "precision", "fleet.usd_per_gpu_hour", ...(find === "MFU" ? [] : ["fleet.mfu"]),
  ]);
  panel.show("work", !isWork);
  panel.show("supply", isWork);
  panel.show("to", find !== "MFU");
  const words = [];
  for (const { key } of Object.values(panel.controls)) {
    if (HOLDERS.includes(key)) continue;
    panel.show(key, given.has(key));
    if (given.has(key)) words.push(`${key}=${panel.value(key)}`);
  }
  if (find === "MFU") words.push("fleet.mfu=null");
  const [low, high] = [panel.value("fleet.mfu"), panel.value("to")];
  return words
    .filter((word) => word !== "fleet.usd_per_gpu_hour=0")
    .map((word) => (high > low && word === `fleet.mfu=${low}` ? `${word}-${high}` : word));
}

function startFleet(panel, words) {
  const keys = words.map((word) => word.split("=")[0]);
  const has = (...asked) => asked.every((key) => keys.includes(`fleet.${key}`));
  const set = (key, value) => (panel.controls[key].input.value = value);
  const range = words.find((word) => /^fleet\.mfu=[\d.]+(-|\.\.)[\d.]+$/.test(word));
  const [low, high] = range ? range.split("=")[1].split(/-|\.\.(?=\d|\.)/) : [];
  panel.start(words.map((word) => (word === range ? `fleet.mfu=${low}` : word)));
  if (range) set("to", Number(high) * 100);
  if (!keys.length) return;
  const hasRatio = has("num_parameters", "tokens_per_parameter");
  if (has("flops")) set("work", "FLOPs");
  else if (hasRatio) set("work", "model and tokens per parameter");
  if (has("usd") && !has("num_devices")) set("supply", "dollars");
  if (has("flops") || hasRatio || has("num_parameters", "tokens"))
    set("find", has("num_devices", "days") ? "MFU" : has("num_devices") ? "days" : has("days") ? "devices" : "cost");
  else set("find", has("num_parameters") ? "tokens" : has("tokens") ? "model" : "model and tokens");
}

function drawRun(panel, { plan, charts }) {
  const { memory, time, horizon, batch, parameters, cost, energy } = plan;
  const { total, ...kinds } = memory.per_device_bytes;
  panel.tell(plan.ok ? "It fits and finishes." : memory.fits === false ? "It does not fit." : "It does not finish.", plan.ok ? "good" : "bad");
  panel.list(".advice", plan.advice);
  panel.tiles([
    [days(time.days), "training time"],
    [cost.usd === null ? "-" : `$${amount(cost.usd)}`, "cost"],
    [amount(horizon.tokens), `tokens in ${horizon.steps.toLocaleString("en")} steps of ${amount(batch.tokens_per_step)}`],
    [amount(time.tokens_per_second), `tokens/s, ${Number(time.step_seconds.toPrecision(3))} s a step`],
    [amount(parameters.total), parameters.active === parameters.total ? "parameters" : `parameters, ${amount(parameters.active)} active`],
    [horizon.flops.toExponential(2), "FLOPs, PaLM's count"],
    [bytes(total), "memory of one device"],
    [energy ? kilowattHours(energy.kwh) : "-", "energy at rated power, at most"],
  ]);
  panel.chart("memory", stackedBar(kinds, memory.device_bytes));
  const byDevices = charts.days_by_devices.map((row) => ({ x: row.num_devices, y: row.days }));
  const here = byDevices.find((point) => point.x === batch.num_ranks);
  panel.chart("time", curve(byDevices, {
    showX: (value) => Math.round(value).toLocaleString("en"), showY: days, label: "days by number of devices",
    marks: here ? [{ ...here, name: `${here.x.toLocaleString("en")} devices: ${days(here.y)}`, colour: "var(--c5)" }] : [],
  }));
  const parts = Object.entries(parameters.components).map(([name, value]) => ({ name, value }));
  panel.chart("parameters", bars(parts.sort((a, b) => b.value - a.value), (value) => `${amount(value)} (${((value / parameters.total) * 100).toFixed(1)}%)`));
  panel.chart("optimizers", bars(charts.optimizers.map((row) => ({ name: row.name, value: row.bytes })), bytes, panel.value("optimizer").replaceAll("_", " ")));
  drawTradeOff(panel, charts.trade_off);
  panel.chart("products", products(charts.products, panel.value("cluster.device")));
  panel.chart("formats", ranges(charts.formats));
}

function drawTradeOff(panel, { curve: points, optimum, run }) {
  const at = (size) => points.reduce((best, each) => (Math.abs(Math.log(each.num_parameters / size)) < Math.abs(Math.log(best.num_parameters / size)) ? each : best));
  const mark = (size, name, colour) => ({ x: at(size).num_parameters, y: at(size).loss, name, colour });
  const isNear = run.num_parameters >= points[0].num_parameters && run.num_parameters <= points.at(-1).num_parameters;
  const marks = [mark(optimum.num_parameters, `optimum ${amount(optimum.num_parameters)}`, "var(--c1)")];
  if (isNear) marks.push(mark(run.num_parameters, `this run, ${amount(run.num_parameters)}`, "var(--c5)"));
  const chart = curve(points.map((each) => ({ x: each.num_parameters, y: each.loss })), {
    showX: (value) => amount(value, 2), showY: (value) => value.toFixed(2), label: "predicted loss by parameters", marks, logY: false,
  });
  const far = isNear ? "" : ` This run's ${amount(run.num_parameters)} parameters on ${amount(run.tokens)} tokens are beyond the curve.`;
  panel.chart("trade_off", [...chart, element("p", `Predicted loss (nats a token) by parameters, each on the tokens that the FLOPs leave.${far}`)]);
}

function drawFleet(panel, { fleet, charts }) {
  panel.tell(fleet.ok ? "It fits and finishes." : "Not like this:", fleet.ok ? "good" : "bad");
  panel.list(".advice", fleet.advice);
  const found = new Set(fleet.found);
  const isParted = fleet.num_devices !== null; // else dollars or device hours are all that is known
  panel.tiles([
    [amount(fleet.num_parameters), "parameters", found.has("num_parameters")],
    [amount(fleet.tokens), `tokens, ${Number(fleet.tokens_per_parameter.toPrecision(3))} a parameter`, found.has("tokens")],
    isParted
      ? [fleet.num_devices.toLocaleString("en"), "devices", found.has("num_devices")]
      : [amount(fleet.device_hours), "device hours", found.has("device_hours")],
    [isParted ? days(fleet.days) : "any", isParted ? "time" : "time, by the number of devices", found.has("hours")],
    [`${(fleet.mfu * 100).toFixed(1)}%`, fleet.over_mfu.length ? "MFU, the middle of the range" : "MFU", found.has("mfu")],
    [fleet.usd === null ? "-" : `$${amount(fleet.usd)}`, "cost", found.has("usd")],
    [fleet.flops.toExponential(2), "FLOPs, 6 x parameters x tokens", found.has("flops")],
    [bytes(fleet.static_bytes), "memory before activations, all devices"],
  ]);
  panel.chart("range", overMfu(panel.value("find"), fleet));
  drawTradeOff(panel, charts.trade_off);
  const rows = fleet.trade_offs.map((each) => ({ name: `${amount(each.num_parameters)}, loss ${each.predicted_loss.toFixed(3)}`, value: each.tokens }));
  panel.chart("others", bars(rows, (value) => amount(value)));
}

function overMfu(find, { over_mfu: runs, found }) {
  if (!runs.length) return [];
  const byFind = {
    tokens: ["tokens", (run) => run.tokens, (value) => amount(value)],
    devices: ["devices", (run) => run.num_devices, (value) => value.toLocaleString("en")],
    days: ["time", (run) => run.hours / 24, days],
    cost: found.includes("usd")
      ? ["cost", (run) => run.usd, (value) => `$${amount(value)}`]
      : ["device hours", (run) => run.device_hours, (value) => amount(value)],
  };
  const [name, value, show] = byFind[find] ?? ["parameters", (run) => run.num_parameters, (each) => amount(each)];
  const rows = runs.map((run) => ({ name: `${Number((run.mfu * 100).toPrecision(3))}%`, value: value(run) }));
  return [...bars(rows, show), element("p", `By MFU: ${name}.`)];
}

function showPage() {
  const shown = location.hash === "#fleet" ? "fleet" : "run";
  for (const page of document.querySelectorAll("main")) page.hidden = page.id !== shown;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
}

const offered = await (await fetch("/choices")).json();
const run = new Panel(document.querySelector("#run"), runControls(offered), { words: runWords, draw: drawRun });
const fleet = new Panel(document.querySelector("#fleet"), fleetControls(offered), { words: fleetWords, draw: drawFleet });
run.start(offered.start.filter((word) => !word.startsWith("fleet.")));
const isFleet = offered.start.some((word) => word.startsWith("fleet."));
startFleet(fleet, offered.start.filter((word) => word.startsWith("fleet.") || (isFleet && word.startsWith("precision="))));
addEventListener("hashchange", showPage);
showPage();
run.changed(0);
fleet.changed(0);
