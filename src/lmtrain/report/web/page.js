// Sliders write a command line; the answer to it is drawn. All accounting is `lmtrain plan`'s.
import { amount, bars, bytes, days, element, seconds, stackedBar } from "/charts.js";
import { drawFleet, fleetControls, fleetWords, startFleet } from "/fleet.js";
import { BUDGETS, HOLDERS, Panel, dollars, drawTradeOff, power, rounded, same, select, slider } from "/panel.js";

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

function drawRun(panel, { plan, charts }) {
  const { memory, time, horizon, batch, parameters, cost } = plan;
  const { total, ...kinds } = memory.per_device_bytes;
  panel.tell(plan.ok ? "It fits and finishes." : memory.fits === false ? "It does not fit." : "It does not finish.", plan.ok ? "good" : "bad");
  panel.list(".advice", plan.advice);
  panel.tiles([
    [days(time.days), "training time"],
    [cost.usd === null ? "-" : `$${amount(cost.usd)}`, "cost"],
    [amount(horizon.tokens), `tokens in ${horizon.steps.toLocaleString("en")} steps of ${amount(batch.tokens_per_step)}`],
    [amount(time.tokens_per_second), `tokens/s, ${seconds(time.step_seconds)} a step`],
    [amount(parameters.total), parameters.active === parameters.total ? "parameters" : `parameters, ${amount(parameters.active)} active`],
    [horizon.flops.toExponential(2), "FLOPs, PaLM's count"],
    [bytes(total), "memory of one device"],
  ]);
  panel.chart("memory", stackedBar(kinds, memory.device_bytes));
  const parts = Object.entries(parameters.components).map(([name, value]) => ({ name, value }));
  panel.chart("parameters", bars(parts.sort((a, b) => b.value - a.value), (value) => `${amount(value)} (${((value / parameters.total) * 100).toFixed(1)}%)`));
  drawTradeOff(panel, charts.trade_off);
}

async function paste(panel, field) {
  const headers = { "Content-Type": "application/json" };
  const found = await (await fetch("/config", { method: "POST", headers, body: field.value })).json();
  if (found.error) return panel.tell(found.error, "bad");
  const menu = panel.controls.model.input;
  if (![...menu.options].some((option) => option.value === found.model)) menu.append(new Option(found.model));
  menu.value = found.model;
  panel.changed(0);
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
const field = Object.assign(document.createElement("textarea"), { name: "config", rows: 3, placeholder: "{\"model_type\": ...}" });
run.controls.model.label.after(element("label", [element("span", "or paste a config.json of transformers"), field]));
field.addEventListener("change", () => paste(run, field));
run.start(offered.start.filter((word) => !word.startsWith("fleet.")));
const isFleet = offered.start.some((word) => word.startsWith("fleet."));
startFleet(fleet, offered.start.filter((word) => word.startsWith("fleet.") || (isFleet && word.startsWith("precision="))));
addEventListener("hashchange", showPage);
showPage();
run.changed(0);
fleet.changed(0);
