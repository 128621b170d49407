// The fleet: terms on two sides of one equation; which of them are given, and what was found.
import { amount, bars, bytes, days } from "/charts.js";
import { HOLDERS, dollars, drawTradeOff, power, rounded, same, select, slider } from "/panel.js";

// Terms given on either side of the equation: what is computed, and what computes it.
const WORK = {
  "model and tokens": ["fleet.num_parameters", "fleet.tokens"],
  "model and tokens per parameter": ["fleet.num_parameters", "fleet.tokens_per_parameter"],
  FLOPs: ["fleet.flops"],
};
const SUPPLY = {
  "devices and days": ["fleet.num_devices", "fleet.days"], dollars: ["fleet.usd"], "device hours": ["fleet.device_hours"],
};
const FOUND_WORK = {
  "model and tokens": ["fleet.tokens_per_parameter"], model: ["fleet.tokens"], tokens: ["fleet.num_parameters"],
};
const FOUND_SUPPLY = { devices: ["fleet.days"], days: ["fleet.num_devices"], MFU: SUPPLY["devices and days"], cost: [] };

export function fleetControls({ options, devices }) {
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
    slider("fleet.device_hours", "Device hours", [1, 8, 0.05], 5, rounded, (value) => amount(value)),
    slider("fleet.mfu", "MFU", [5, 70, 1], 40, (value) => value / 100, percent),
    slider("fleet.usd_per_gpu_hour", "Price of a device and hour", [0, 12, 0.1], 2.5, same, dollars),
  ];
}

export function fleetWords(panel) {
  const find = panel.value("find"), isWork = find in FOUND_WORK;
  const given = new Set([
    ...(FOUND_WORK[find] ?? WORK[panel.value("work")]), ...(FOUND_SUPPLY[find] ?? SUPPLY[panel.value("supply")]),
    "fleet.device", "fleet.usd_per_gpu_hour", ...(find === "MFU" ? [] : ["fleet.mfu"]),
    "precision",
  ]);
  panel.show("work", !isWork);
  panel.show("supply", isWork);
  const words = [];
  for (const { key } of Object.values(panel.controls)) {
    if (HOLDERS.includes(key)) continue;
    panel.show(key, given.has(key));
    if (given.has(key)) words.push(`${key}=${panel.value(key)}`);
  }
  if (find === "MFU") words.push("fleet.mfu=null");
  return words.filter((word) => word !== "fleet.usd_per_gpu_hour=0");
}

export function startFleet(panel, typed) {
  const words = typed
    .filter((word) => !word.endsWith("=null"))
    .map((word) => (word.startsWith("fleet.hours=") ? `fleet.days=${Number(word.split("=")[1]) / 24}` : word));
  const keys = words.map((word) => word.split("=")[0]);
  const has = (...asked) => asked.every((key) => keys.includes(`fleet.${key}`));
  const set = (key, value) => (panel.controls[key].input.value = value);
  panel.start(words);
  if (!keys.length) return;
  const hasRatio = has("num_parameters", "tokens_per_parameter");
  if (has("flops")) set("work", "FLOPs");
  else if (hasRatio) set("work", "model and tokens per parameter");
  if (has("device_hours")) set("supply", "device hours");
  else if (has("usd") && !has("num_devices")) set("supply", "dollars");
  if (has("flops") || hasRatio || has("num_parameters", "tokens"))
    set("find", has("num_devices", "days") ? "MFU" : has("num_devices") ? "days" : has("days") ? "devices" : "cost");
  else set("find", has("num_parameters") ? "tokens" : has("tokens") ? "model" : "model and tokens");
}

export function drawFleet(panel, { fleet, charts }) {
  const isParted = fleet.num_devices !== null; // else dollars or device hours are all that is known
  const held = `It needs ${fleet.fewest_devices} ${fleet.fewest_devices === 1 ? "device" : "devices"} at least.`;
  panel.tell(!fleet.ok ? "Not like this:" : isParted ? "It fits and finishes." : held, fleet.ok ? "good" : "bad");
  panel.list(".advice", fleet.advice);
  const found = new Set(fleet.found);
  const isSparse = (fleet.num_active_parameters ?? fleet.num_parameters) < fleet.num_parameters;
  const each = isSparse ? "an active parameter" : "a parameter";
  panel.tiles([
    [amount(fleet.num_parameters), "parameters", found.has("num_parameters")],
    [amount(fleet.tokens), `tokens, ${Number(fleet.tokens_per_parameter.toPrecision(3))} ${each}`, found.has("tokens")],
    isParted
      ? [fleet.num_devices.toLocaleString("en"), "devices", found.has("num_devices")]
      : [amount(fleet.device_hours), "device hours", found.has("device_hours")],
    [isParted ? days(fleet.days) : "any", isParted ? "time" : "time, by the number of devices", found.has("hours")],
    [`${(fleet.mfu * 100).toFixed(1)}%`, "MFU", found.has("mfu")],
    [fleet.usd === null ? "-" : `$${amount(fleet.usd)}`, "cost", found.has("usd")],
    [fleet.flops.toExponential(2), "FLOPs, 6 x parameters x tokens", found.has("flops")],
    [bytes(fleet.static_bytes), "memory before activations, all devices"],
  ]);
  drawTradeOff(panel, charts.trade_off);
  const rows = fleet.trade_offs.map((each) => {
    const loss = each.predicted_loss === null ? "" : `, loss ${each.predicted_loss.toFixed(3)}`;
    return { name: `${amount(each.num_parameters)}${loss}`, value: each.tokens };
  });
  panel.chart("others", bars(rows, (value) => amount(value)));
}
