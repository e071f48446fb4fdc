// The page: what is looked at (from the address after #), asked for every two seconds, and shown. One job is in job.js.

import { h, number, progress, share } from "./draw.js";
import { JobPage } from "./job.js";

const EVERY = 2000;
const ORDER = ["all", "running", "waiting", "paused", "failed", "cancelled", "done", "ready", "preparing", "leaving", "away", "idle"];
const FEW = 20;

const main = document.getElementById("main");
const trouble = document.getElementById("trouble");

export async function get(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const said = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(said.hint ? `${said.error}: ${said.hint}` : said.error), { status: answer.status });
  return said;
}

export const jobPath = (name) => "api/jobs/" + encodeURIComponent(name);
export const badge = (state) => h("span", { class: "badge " + state }, state);

// A table whose rows stay while what they show stays the same: 500 of them, every two seconds.
export class Table {
  constructor(columns, cells, keyOf) {
    this.cells = cells;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.body = h("tbody");
    this.element = h("div", { class: "scroll" },
      h("table", {}, h("thead", {}, h("tr", {}, columns.map(([name, kind]) => h("th", { class: kind, scope: "col" }, name)))), this.body));
  }

  show(things) {
    const before = this.rows;
    this.rows = new Map();
    const order = things.map((thing) => {
      const key = this.keyOf(thing), said = JSON.stringify(thing), old = before.get(key);
      const row = old && old.said === said ? old : { said, element: h("tr", {}, this.cells(thing)) };
      this.rows.set(key, row);
      return row.element;
    });
    const now = this.body.children;
    if (now.length !== order.length || order.some((element, place) => now[place] !== element)) this.body.replaceChildren(...order);
  }
}

const right = (...children) => h("td", { class: "num" }, ...children);

const jobCells = (job) => [
  h("td", { class: "name" }, h("a", { href: "#/job/" + encodeURIComponent(job.job) }, job.job)),
  h("td", {}, badge(job.state)),
  h("td", { class: "wide" }, progress(job)),
  right(job.workers ? number(job.workers) : ""),
  right(job.samples_per_second ? number(job.samples_per_second, 3) : ""),
  right(number(job.loss)),
  right(job.recovered ? number(job.recovered) : ""),
  h("td", { class: "why", title: job.reason }, job.reason.split("\n")[0]),
];
const JOB_COLUMNS = [["Job"], ["State"], ["Step"], ["Workers", "num"], ["Samples/s", "num"], ["Loss", "num"],
  ["Recoveries", "num"], ["Why"]];

// A pipeline: its stages in order, each after those that it builds on.
const stageChip = (stage) => {
  const said = `${stage.kind}${stage.inputs.length ? ", builds on " + stage.inputs.join(", ") : ""}: ${stage.state}`
    + (stage.steps ? `, step ${stage.step} of ${stage.steps}` : "") + (stage.reason ? `, ${stage.reason}` : "");
  const share = stage.state === "running" && stage.steps > 1 ? h("b", {}, Math.floor(100 * stage.step / stage.steps) + " %") : null;
  return stage.submitted
    ? h("a", { class: "stage " + stage.state, href: "#/job/" + encodeURIComponent(stage.job), title: said }, stage.stage, share)
    : h("span", { class: "stage", title: said }, stage.stage);
};
const pipelineCells = (one) => [
  h("td", { class: "name" }, one.pipeline),
  h("td", {}, badge(one.state)),
  h("td", { class: "stages" }, one.stages.flatMap((stage, place) => [place ? h("span", { class: "then" }, "→") : null, stageChip(stage)])),
];

const range = (first, last) => (last - first > 1 ? `${first}..${last - 1}` : last > first ? String(first) : "");

const workerCells = (worker) => [
  h("td", { class: "name", title: worker.id }, worker.name),
  h("td", {}, worker.kind),
  h("td", {}, badge(worker.state)),
  h("td", { class: "name" }, worker.job ? h("a", { href: "#/job/" + encodeURIComponent(worker.job) }, worker.job) : ""),
  h("td", {}, range(worker.first, worker.last)),
  h("td", {}, worker.share ? share(worker.share) : ""),
  right(worker.ests_per_second ? number(worker.ests_per_second, 3) : ""),
  right(worker.samples_per_second ? number(worker.samples_per_second, 3) : ""),
  h("td", { class: "why", title: worker.remark }, worker.remark),
];
const WORKER_COLUMNS = [["Worker"], ["Kind"], ["State"], ["Job"], ["ESTs"], ["Share"], ["ESTs/s", "num"],
  ["Samples/s", "num"], ["Remark"]];

export const workerTable = () => new Table(WORKER_COLUMNS, workerCells, (worker) => worker.id);

// Chips that count what there is and choose among it, and a field that searches.
class Filter {
  constructor(hint, textOf, again) {
    this.chosen = null;
    this.textOf = textOf;
    this.chips = h("div", { class: "chips" });
    this.field = h("input", { type: "search", placeholder: hint, "aria-label": hint, input: again });
    this.again = again;
    this.element = h("div", { class: "filter" }, this.chips, this.field);
  }

  pass(things) {
    const counts = new Map([["all", things.length]]);
    for (const thing of things) counts.set(thing.state, (counts.get(thing.state) || 0) + 1);
    const choose = (name) => { this.chosen = name === "all" || name === this.chosen ? null : name; this.again(); };
    const chips = [...counts].sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b)).map(([name, count]) =>
      h("button", { class: "chip " + name, "aria-pressed": String((this.chosen || "all") === name), click: () => choose(name) },
        name, h("b", {}, number(count))));
    const said = chips.map((chip) => chip.textContent + chip.getAttribute("aria-pressed")).join();
    if (said !== this.said) { this.said = said; this.chips.replaceChildren(...chips); }
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    return things.filter((thing) => (!this.chosen || thing.state === this.chosen)
      && words.every((word) => this.textOf(thing).toLowerCase().includes(word)));
  }
}

class Overview {
  constructor(what) {
    this.what = what;
    const again = () => this.draw();
    this.jobFilter = new Filter("Search jobs", (job) => job.job + " " + job.reason, again);
    this.workerFilter = new Filter("Search workers", (worker) => `${worker.name} ${worker.kind} ${worker.job || ""}`, again);
    this.jobs = new Table(JOB_COLUMNS, jobCells, (job) => job.job);
    this.pipelines = new Table([["Pipeline"], ["State"], ["Stages", "grow"]], pipelineCells, (one) => one.pipeline);
    this.workers = workerTable();
    this.none = h("p", { class: "none" });
    this.jobPart = h("section", {}, h("h2", {}, "Jobs"), this.jobFilter.element, this.jobs.element);
    this.pipelinePart = h("section", { id: "pipelines" }, h("h2", {}, "Pipelines"), this.pipelines.element);
    this.workerPart = h("section", {}, h("h2", {}, "Workers"), this.workerFilter.element, this.workers.element);
    this.element = h("div", {}, this.none, ...(what === "jobs" ? [this.pipelinePart, this.jobPart] : []), this.workerPart);
  }

  async refresh() {
    const asked = [get("api/workers"), ...(this.what === "jobs" ? [get("api/jobs"), get("api/pipelines")] : [])];
    [this.workerList, this.jobList = [], this.pipelineList = []] = await Promise.all(asked);
    this.draw();
  }

  draw() {
    if (!this.workerList) return;
    const both = this.what === "jobs";
    const sorted = [...this.jobList].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
    this.jobs.show(this.jobFilter.pass(sorted));
    this.pipelines.show(this.pipelineList);
    this.pipelinePart.hidden = !this.pipelineList.length;
    this.jobFilter.element.hidden = sorted.length < 6;
    // Under a long list nobody would find them: they have a page of their own.
    this.workerPart.hidden = both && (sorted.length > FEW || this.workerList.length > FEW || !this.workerList.length);
    if (!this.workerPart.hidden) this.workers.show(this.workerFilter.pass(this.workerList));
    this.workerFilter.element.hidden = this.workerList.length < 6;
    this.none.textContent = both && !sorted.length && !this.pipelineList.length ? "No jobs yet. Next: easyscale submit SCRIPT, or easyscale run SCRIPT"
      : !both && !this.workerList.length ? "No workers. Next: easyscale worker" : "";
    this.jobPart.hidden = !sorted.length;
  }
}

// ---- what is looked at

let shown = null, where = null;
export const cluster = {};

function look() {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  where = location.hash;
  if (shown && shown.close) shown.close();
  if (parts[0] === "job" && parts[1]) shown = new JobPage(decode(parts[1]));
  else shown = new Overview(parts[0] === "workers" ? "workers" : "jobs");
  document.title = parts[0] === "job" && parts[1] ? decode(parts[1]) + " · EasyScale" : "EasyScale";
  document.getElementById("to-jobs").classList.toggle("here", parts[0] !== "workers");
  document.getElementById("to-workers").classList.toggle("here", parts[0] === "workers");
  main.replaceChildren(shown.element);
  window.scrollTo(0, 0);
  refresh();
}

function decode(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

let asking = false, again = false;
export async function refresh() {
  if (asking) { again = true; return; }
  asking = true;
  again = false;
  const page = shown;
  try {
    Object.assign(cluster, await get("api/cluster"));
    document.getElementById("where").textContent = cluster.kv;
    document.getElementById("where").title = `store ${cluster.store}, version ${cluster.version}`;
    await page.refresh();
    tell([cluster.coordinator ? "" : "No coordinator leads: nothing is assigned to workers. Next: easyscale coordinator",
      cluster.unreadable.length ? `${cluster.unreadable.length} keys cannot be read, the first: ${cluster.unreadable[0]}` : ""]);
  } catch (error) {
    tell([error.status ? error.message : "The server does not answer; trying again."]);
    if (error.status === 404 && page === shown) page.element.replaceChildren(h("p", { class: "none" }, "There is no such job. ", h("a", { href: "#/" }, "All jobs")));
  } finally {
    asking = false;
    if (again) refresh();
  }
}

function tell(lines) {
  const text = lines.filter(Boolean).join(" ");
  trouble.textContent = text;
  trouble.hidden = !text;
}

window.addEventListener("hashchange", () => { if (location.hash !== where) look(); });
setInterval(() => { if (!document.hidden) refresh(); }, EVERY);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
look();
