// One job: facts, buttons, curves, who ran what, commits, recoveries.

import { bytes, colours, duration, h, lineChart, number, progress, timeline } from "./draw.js";
import { badge, cluster, get, jobPath, refresh, Table, workerTable } from "./page.js";

const POINTS = 400;
const SHOWN = 15;

const section = (title, ...children) => h("section", {}, h("h2", {}, title), ...children);
const when = (seconds) => new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
const cell = (...children) => h("td", {}, ...children);
const TOKEN = { id: "token", label: "Token", type: "password" };
const link = (job, text) => h("a", { href: "#/job/" + encodeURIComponent(job) }, text || job);
const right = (...children) => h("td", { class: "num" }, ...children);

export class JobPage {
  constructor(name) {
    this.name = name;
    this.path = jobPath(name);
    this.log = false;
    this.note = "";
    this.shownGenerations = SHOWN;
    this.parts = Object.fromEntries(["head", "trouble", "facts", "curves", "timeline", "recoveries", "workers", "generations", "verified", "commits"]
      .map((part) => [part, h("div", { id: "part-" + part })]));
    this.said = {};
    this.workers = workerTable();
    this.parts.workers.append(section("Workers", this.workers.element));
    this.commits = new Table([["Step", "num"], ["When"], ["Generation", "num"], ["Metrics", "grow"], ["Size", "num"], ["State digest"]],
      commitCells, (commit) => commit.manifest);
    this.older = h("button", { click: () => this.moreCommits() }, "Older commits");
    this.commitTrouble = h("p", { class: "none" });
    this.parts.commits.append(section("Commits", this.commits.element, this.commitTrouble, this.older));
    this.commitList = [];
    this.element = h("div", { class: "job" }, Object.values(this.parts));
    this.resized = () => { this.said.curves = this.said.timeline = null; this.draw(); };
    window.addEventListener("resize", this.resized);
  }

  close() { window.removeEventListener("resize", this.resized); }

  async refresh() {
    this.job = await get(this.path);
    const key = `${this.job.manifest} ${this.job.generation}`;
    if (key !== this.readAt || !this.scalars || !this.scalars.complete) {
      const limit = Math.max(SHOWN, Math.min(500, this.commitList.length));
      const [scalars, commits] = await Promise.all(
        [get(`${this.path}/scalars?points=${POINTS}`), get(`${this.path}/commits?limit=${limit}`)]);
      this.scalars = scalars;
      this.commitAnswer = commits;
      this.commitList = commits.commits;
      // Read on until the newest commit is there, too.
      const newest = commits.commits.length ? commits.commits[0].manifest : null;
      this.readAt = newest === this.job.manifest ? key : null;
    }
    [this.generations, this.verified] = await Promise.all([get(`${this.path}/timeline`), get(`${this.path}/verified`)]);
    this.draw();
  }

  async moreCommits() {
    const last = this.commitList[this.commitList.length - 1];
    const more = await get(`${this.path}/commits?limit=100&before=${last.step}`);
    this.commitList = [...this.commitList, ...more.commits];
    this.commitAnswer = more;
    this.drawCommits();
  }

  // Drawn anew only if what it is made from has changed: what is pointed at or selected stays.
  part(name, made, ...from) {
    const said = JSON.stringify(from);
    if (said === this.said[name]) return;
    this.said[name] = said;
    this.parts[name].replaceChildren(...made().filter(Boolean));
  }

  draw() {
    const job = this.job;
    if (!job || !this.generations) return;
    const upto = Math.max(1, job.step, ...this.generations.map((one) => one.last || 0));
    const steering = cluster.steering;
    const left = this.timeLeft();
    this.part("head", () => this.head(left), job.state, job.reason, job.desired, job.step, job.committed, steering, left, this.note);
    this.part("facts", () => [facts(job)], job);
    this.part("curves", () => this.curves(upto), this.scalars, this.log, upto);
    this.part("timeline", () => this.timelinePart(upto), this.generations, this.scalars.commits, upto);
    this.workers.show(job.serving);
    this.parts.workers.hidden = !job.serving.length;
    this.part("generations", () => this.generationPart(), this.generations, this.shownGenerations);
    this.part("verified", () => verified(this.verified), this.verified);
    this.drawCommits();
    this.part("recoveries", () => recoveries(job), job.recoveries, job.attempts, job.recovered);
    this.part("trouble", () => troubles(job), job.traceback, job.damage, job.quarantined);
  }

  timeLeft() {
    const { state, step, steps } = this.job, now = Date.now() / 1000;
    if (state !== "running" || (this.from && this.from.step > step)) this.from = null;
    if (state !== "running") return "";
    this.from = this.from || { step, now };
    const made = step - this.from.step, took = now - this.from.now;
    return made > 0 && took > 3 && steps > step ? `about ${duration(((steps - step) * took) / made)} left` : "";
  }

  head(left) {
    const job = this.job;
    const steer = (verb, text, ...more) => h("button", { id: verb, click: () => this.steer(verb, text, ...more) }, text);
    const over = ["done", "failed", "cancelled"].includes(job.state);
    const buttons = !cluster.steering ? [] : [
      !over && job.desired === "running" ? steer("pause", "Pause") : null,
      !over && job.desired !== "running" ? steer("resume", "Resume") : null,
      !over ? steer("cancel", "Cancel", "It ends at once, without a commit. What was committed stays, and `retry` goes on from there.") : null,
      job.state === "failed" || job.state === "cancelled" ? steer("retry", "Retry") : null,
      job.manifest ? steer("fork", "Fork", "Another job begins with a commit of this one, which goes on undisturbed.", [
        { id: "name", label: "Name of the new job", value: `${job.job}-fork` },
        { id: "step", label: "Step of the commit", value: String(job.committed) },
        { id: "set", label: "Other settings", hint: "lr=0.01 steps=20000", many: true },
      ]) : null,
    ];
    const wanted = job.desired !== "running" && job.desired !== job.state && !over ? h("span", { class: "wanted" }, `wanted ${job.desired}`) : null;
    return [
      h("p", { class: "back" }, h("a", { href: "#/" }, "← All jobs")),
      h("div", { class: "title" }, h("h1", {}, job.job), badge(job.state), wanted, h("span", { class: "left" }, left),
        h("div", { class: "buttons" }, buttons)),
      progress(job),
      job.reason ? h("p", { class: "reason " + job.state }, job.reason) : null,
      h("p", { id: "steered", role: "status" }, this.note),
    ];
  }

  // Asks for what is wanted of `fields`, and for the token unless it is known; asks again while something is wrong with them.
  async steer(verb, text, why = "", fields = []) {
    let token = sessionStorage.getItem("token");
    for (;;) {
      const asked = token ? fields : [...fields, TOKEN];
      const said = asked.length || why ? await ask(`${text} ${this.name}?`, why, text, asked) : {};
      if (said === null) return;
      token = token || said.token;
      fields = fields.map((field) => ({ ...field, value: said[field.id] }));
      const query = new URLSearchParams();
      for (const { id, value, many } of fields) for (const one of many ? value.split(/\s+/) : [value]) if (one) query.append(id, one);
      this.note = text + " ...";
      this.draw();
      const answer = await fetch(`${this.path}/${verb}?${query}`, { method: "POST", headers: { authorization: "Bearer " + token } }).catch(() => null);
      if (!answer) { this.note = "The server does not answer: look before you try again."; this.draw(); return; }
      const told = await answer.json();
      why = answer.ok ? "" : [told.error, told.hint].filter(Boolean).join(": ");
      this.note = "";
      if (answer.status === 401) { sessionStorage.removeItem("token"); token = null; continue; }
      sessionStorage.setItem("token", token);
      if (!answer.ok && fields.length) continue;
      if (answer.ok && verb === "fork") { location.hash = "#/job/" + encodeURIComponent(told.job); return; }
      this.note = why || `${told.job} is wanted ${told.desired}`;
      this.draw();
      await refresh();
      return;
    }
  }

  curves(upto) {
    const scalars = this.scalars, xs = [0, upto];
    const width = Math.max(300, this.element.clientWidth || 900);
    const names = Object.keys(scalars.metrics);
    const columns = Math.max(1, Math.min(2 + names.length, Math.floor((width + 16) / 416)));
    const each = (width - 16 * (columns - 1)) / columns - 26;
    const points = (values) => scalars.step.map((step, place) => [step, values[place]]);
    const chart = (title, list, band, options, extra) => {
      const reading = h("span", { class: "reading" });
      return h("figure", {}, h("figcaption", {}, h("b", {}, title), reading, extra || null),
        lineChart(each, 190, list, band, xs, { label: title, read: (text) => { reading.textContent = text; }, ...options }));
    };
    const toggle = h("button", { class: "small", "aria-pressed": String(this.log), click: () => { this.log = !this.log; this.draw(); } }, "log");
    const band = scalars.step.map((step, place) => [step, scalars.low[place], scalars.high[place]]);
    const notes = [
      scalars.complete ? "" : "Still reading the history; what is here so far is shown.",
      scalars.trouble ? `It cannot be read further: ${scalars.trouble}` : "",
      scalars.older ? "Older steps are left out; easyscale scalars writes all of them." : "",
      scalars.nonfinite ? `${number(scalars.nonfinite)} steps have a loss that is not a finite number.` : "",
    ].filter(Boolean).join(" ");
    if (!scalars.step.length) return [section("Curves", h("p", { class: "none" }, notes || "Numbers of steps come with the first commit."))];
    return [section("Curves", h("div", { class: "charts" },
      chart("Loss", points(scalars.loss), band, { log: this.log }, toggle),
      chart("Learning rate", points(scalars.lr), [], {}),
      names.map((name) => chart(name, scalars.metrics[name], [], {}))),
    notes ? h("p", { class: "note" }, notes) : null)];
  }

  timelinePart(upto) {
    const ran = this.generations.filter((one) => one.first !== null && one.members.length);
    if (!ran.length) return [];
    const names = ran.flatMap((one) => one.members.map((member) => member.worker));
    const colourOf = colours(names), every = [...new Set(names)];
    const width = Math.max(300, this.element.clientWidth || 900) - 26;
    const legend = every.slice(-16).map((name) => h("span", { class: "key", colour: colourOf(name) }, name));
    const past = this.generations[0].generation > 1 ? "Only the newest generations are kept. " : "";
    return [section("Who ran which ESTs", h("figure", {},
      timeline(width, ran, this.job.ests, [0, upto], this.scalars.commits, colourOf),
      h("div", { class: "legend" }, every.length > 16 ? `newest 16 of ${every.length} workers:` : "", legend)),
    h("p", { class: "note" }, past + "Steps run to the right, ESTs upwards. A vertical line is a new generation, a tick below the axis a commit. Point at a bar to see why."))];
  }

  generationPart() {
    const newest = [...this.generations].reverse();
    if (!newest.length) return [];
    const rows = newest.slice(0, this.shownGenerations).map((one) => h("tr", {}, right(number(one.generation)),
      cell(one.first === null ? "none" : `${number(one.first)} to ${number(one.last)}`), right(number(one.members.length)),
      cell(one.members.length > 1 ? one.lane : ""), h("td", { class: "why", title: one.cause }, one.cause)));
    const more = newest.length > this.shownGenerations
      ? h("button", { click: () => { this.shownGenerations = newest.length; this.draw(); } }, `All ${newest.length}`) : null;
    return [section("Generations", h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {},
      h("th", { class: "num" }, "Generation"), h("th", {}, "Steps"), h("th", { class: "num" }, "Members"), h("th", {}, "Lane"), h("th", { class: "grow" }, "Why"))),
    h("tbody", {}, rows))), more)];
  }

  drawCommits() {
    this.commits.show(this.commitList);
    this.older.hidden = !this.commitAnswer || !this.commitAnswer.more;
    this.older.textContent = this.commitAnswer ? `Older commits (${number(this.commitAnswer.more)})` : "";
    this.commitTrouble.textContent = this.commitAnswer ? this.commitAnswer.trouble : "";
    this.parts.commits.hidden = !this.commitList.length;
  }
}

const short = (digest) => h("code", { title: digest }, digest.slice(0, 12));

const commitCells = (commit) => [
  right(number(commit.step)), cell(when(commit.created)), right(number(commit.generation)),
  cell(Object.entries(commit.metrics).slice(0, 4).map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : value}`).join(", ")),
  right(bytes(commit.bytes)), cell(short(commit.state_digest)),
];

function facts(job) {
  const pairs = [
    ["Loss", number(job.loss)], ["Learning rate", number(job.lr)],
    ["Samples/s", job.samples_per_second ? number(job.samples_per_second, 3) : ""],
    ...Object.entries(job.metrics).slice(0, 4).map(([name, value]) => [name, number(value)]),
    ["Committed", number(job.committed)], ["ESTs", number(job.ests)], ["Generation", number(job.generation)],
    ["Lane", job.lane + (job.sent_per_step ? `, ${bytes(job.sent_per_step)} a step` : "")],
    ["Priority", job.priority ? number(job.priority) : ""], ["Numerics", job.numerics], ["Tenant", job.tenant],
    ["Submitted", job.submitted ? when(job.submitted) : ""],
    ["Forked from", job.forked ? link(job.forked.slice(0, job.forked.lastIndexOf("@")), job.forked) : ""],
    ["Forks", job.forks.length ? job.forks.flatMap((fork, place) => [place ? ", " : "", link(fork.job, `${fork.job}@${number(fork.step)}`)]) : ""],
    ["State digest", job.state_digest ? short(job.state_digest) : ""],
  ].filter(([, value]) => value !== "" && value !== null);
  return h("div", {}, h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    job.speeds.length ? h("details", {}, h("summary", {}, "Speeds, and why ranges are as they are"),
      h("ul", {}, job.speeds.map((line) => h("li", {}, h("b", {}, line.what), " ", line.text)))) : null);
}

function recoveries(job) {
  const attempts = Object.entries(job.attempts).map(([cause, count]) => `${count} ${cause}`).join(", ");
  if (!job.recoveries.length && !attempts) return [];
  const rows = [...job.recoveries].reverse().map((one) => h("tr", {}, h("td", { class: "why", title: one.cause }, one.cause),
    right(duration(one.seconds)), right(number(one.steps_recomputed))));
  return [section("Recoveries", rows.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "grow" }, "Cause"),
    h("th", { class: "num" }, "Until the next step"), h("th", { class: "num" }, "Steps recomputed"))), h("tbody", {}, rows))) : null,
  attempts ? h("p", { class: "note" }, `Attempts that ended: ${attempts}. `,
    job.recovered > job.recoveries.length ? `Recoveries in all: ${job.recovered}.` : "") : null)];
}

function verified(results) {
  if (!results.length) return [];
  const rows = results.map((one) => h("tr", {}, cell(badge(one.verdict)), cell(`${number(one.start)} to ${number(one.end)}`),
    right(number(one.steps)), cell(when(one.at)), cell(`${one.host}, ${one.device}`), h("td", { class: "why", title: one.found }, one.found.split("\n")[0])));
  return [section("Verified", h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Verdict"), h("th", {}, "Steps"),
    h("th", { class: "num" }, "Computed anew"), h("th", {}, "When"), h("th", {}, "Where"), h("th", { class: "grow" }, "Found"))), h("tbody", {}, rows))))];
}

function troubles(job) {
  return [
    job.traceback ? section("Traceback", h("pre", {}, job.traceback)) : null,
    job.damage.length ? section("Damage", h("ul", {}, job.damage.map((what) => h("li", {}, what)))) : null,
    Object.keys(job.quarantined).length ? section("Quarantine", h("ul", {},
      Object.entries(job.quarantined).map(([device, why]) => h("li", {}, h("b", {}, device), " ", why)))) : null,
  ];
}

// Asks in a dialog: what was said by the ids of fields, null if the answer is no.
function ask(title, text, yes, fields) {
  const dialog = document.getElementById("ask");
  const inputs = fields.map(({ id, label, type = "text", value = "", hint }) =>
    h("label", {}, label, h("input", { id, type, value, placeholder: hint, autocomplete: "off", spellcheck: "false" })));
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-text").textContent = text;
  document.getElementById("ask-yes").textContent = yes;
  document.getElementById("ask-fields").replaceChildren(...inputs);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue !== "yes" ? null
    : Object.fromEntries(fields.map(({ id }) => [id, document.getElementById(id).value.trim()]))), { once: true }));
}
