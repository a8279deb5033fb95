// A job as it happens: trials update the numbers in place, other steps load the page's content anew.

const QUIET_MS = 20_000; // without a step for so long, the page asks the server anew
const RETRY_MS = 2000;
const REDRAW_MS = 2000; // a chart whose axes change comes from the server, at most so often
const LEAST_MS = 2000; // before that, a pace says nothing
const TIMED = ["ok", "predicted"];
const digits = new Intl.NumberFormat("en");
const whole = (value) => digits.format(Math.round(value));

const us = (value) => (value >= 1000 ? whole(value) : value.toFixed(value < 10 ? 2 : 1));

/** A duration in its two largest units, as the server writes it. */
function duration(seconds) {
  for (const [unit, size, below, part] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60]]) {
    if (seconds >= size) {
      return `${Math.floor(seconds / size)} ${unit} ${Math.floor((seconds % size) / part)} ${below}`;
    }
  }
  const rest = Math.ceil(seconds);
  return rest >= 60 ? `${Math.floor(rest / 60)} min ${rest % 60} s` : `${rest} s`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

const fill = (bar, percent) => bar?.querySelector(".part").setAttribute("width", percent.toFixed(1));

let redrawn = 0;
let redrawing;

/** Follows the job of an element until it ends. Every text of the server is set as text. */
export function follow(job, showTimes) {
  const seen = Number(job.dataset.seen);
  const source = new EventSource(`${job.dataset.events}?after=${seen}`);
  let first = null; // the time of the first trials that came here
  let triedSince = 0;
  let timedSince = 0;

  // A browser has six connections for a host, and a hidden tab needs none of them.
  let quiet = setTimeout(reloadIfQuiet, QUIET_MS);
  function reloadIfQuiet() {
    if (!job.isConnected) return;
    if (document.hidden || source.readyState !== EventSource.OPEN) {
      quiet = setTimeout(reloadIfQuiet, QUIET_MS);
      return;
    }
    source.close();
    reload();
  }

  const pause = () => {
    if (document.hidden) {
      source.close();
    } else if (source.readyState === EventSource.CLOSED) {
      reload();
    }
  };
  document.addEventListener("visibilitychange", pause);

  source.onopen = () => setOffline(false);
  source.onerror = () => {
    setOffline(true);
    // The browser itself connects again, unless it was refused: the job or the session has ended.
    if (source.readyState === EventSource.CLOSED) setTimeout(reload, RETRY_MS);
  };

  for (const kind of STEPS) {
    source.addEventListener(kind, (event) => {
      const step = JSON.parse(event.data);
      clearTimeout(quiet);
      if (step.kind === "trials") {
        quiet = setTimeout(reloadIfQuiet, QUIET_MS);
        showTrials(step);
        return;
      }
      source.close();
      reload();
    });
  }

  function showTrials(step) {
    const tried = document.getElementById("tried");
    const count = Number(tried.dataset.count) + step.data.tried;
    tried.dataset.count = count;
    tried.textContent = digits.format(count);
    const statuses = step.data.statuses ?? {};
    showPace(step, statuses, Number(tried.dataset.most) - count);
    for (const [status, number] of Object.entries(statuses)) addStatus(status, number);
    showStatuses(count);
    const alone = Object.entries(step.data.incumbents_us ?? {});
    for (const [point, times] of alone) showAlone(point, times);
    for (const [point, time] of Object.entries(step.data.best_us)) showBest(point, time);
    const parts = Object.keys(step.data.best_us).map((point) => rowOf(point)?.dataset.part);
    if (alone.length || ![...new Set(parts)].filter(Boolean).every(drawBest)) redraw();
    addStep(step);
  }

  /** The pace since the first trials that came here: they only say when they were stored. */
  function showPace(step, statuses, left) {
    const at = Date.parse(step.at);
    if (first === null) {
      first = at;
      return;
    }
    triedSince += step.data.tried;
    timedSince += TIMED.reduce((sum, status) => sum + (statuses[status] ?? 0), 0);
    const minutes = (at - first) / 60000;
    if (at - first < LEAST_MS) return;
    const [tried, timed] = [triedSince / minutes, timedSince / minutes];
    document.getElementById("rate").textContent =
      `a minute: ${whole(tried)} tried, ${whole(timed)} with a time`;
    const said = document.getElementById("left");
    if (said && document.getElementById("tried").dataset.most) {
      said.textContent = left > 0 ? duration((60 * left) / tried) : "–";
    }
  }

  function addStatus(status, number) {
    const item = job.querySelector(`[data-status="${CSS.escape(status)}"]`);
    if (!item) return;
    const count = Number(item.dataset.count) + number;
    item.dataset.count = count;
    item.hidden = false;
    item.querySelector("b").textContent = digits.format(count);
  }

  function showStatuses(all) {
    for (const item of job.querySelectorAll("[data-status]")) {
      fill(item, (100 * Number(item.dataset.count)) / all);
    }
  }

  const rowOf = (point) => job.querySelector(`#bests [data-point="${CSS.escape(point)}"]`);

  function showBest(point, time) {
    const row = rowOf(point) ?? addRow(point);
    if (!row) return;
    row.dataset.best = time;
    row.cells[2].textContent = us(time);
    showGain(row);
  }

  function showAlone(point, times) {
    const row = rowOf(point);
    const time = row && times[row.dataset.running];
    if (!time) return;
    row.dataset.alone = time;
    row.cells[3].textContent = us(time);
    showGain(row);
  }

  function showGain(row) {
    const gain = Number(row.dataset.alone) / Number(row.dataset.best);
    if (!Number.isFinite(gain) || gain === 0) return;
    row.cells[4].textContent = `${(Math.floor(gain * 100 + 1e-9) / 100).toFixed(2)}×`;
    fill(row.cells[5], Math.min(100, Math.max(0, 100 * (1 - 1 / gain))));
  }

  /** Draws the best times of a part; false where the server has to draw its chart anew. */
  function drawBest(part) {
    const chart = job.querySelector(`.chart[data-part="${CSS.escape(part)}"]`);
    const line = chart?.querySelector("polyline[data-key=tuned]");
    const [mark, ...others] = chart?.querySelectorAll("circle[data-key=tuned]") ?? [];
    if (!mark) return false;
    const [at, [least, most, down, up]] = [chart.dataset.places, chart.dataset.scale].map((one) => JSON.parse(one));
    const found = [...job.querySelectorAll("#bests tr")]
      .filter((row) => row.dataset.part === part && row.dataset.best)
      .map(({ dataset: { size, best } }) => ({ size, best: Number(best), x: at[size] }))
      .sort((one, other) => one.x - other.x);
    if (!found.every(({ best, x }) => x !== undefined && best >= least && best <= most)) return false;
    if (found.length > 1 && !line) return false;
    const y = (time) => down + ((up - down) * Math.log(time / least)) / Math.log(most / least);
    line?.setAttribute("points", found.map(({ best, x }) => `${x.toFixed(1)},${y(best).toFixed(1)}`).join(" "));
    const marks = found.map(({ size, best, x }) => {
      const made = mark.cloneNode(true);
      made.setAttribute("cx", x.toFixed(1));
      made.setAttribute("cy", y(best).toFixed(1));
      made.querySelector("title").textContent = `best so far, ${size}: ${us(best)} µs`;
      return made;
    });
    mark.replaceWith(...marks);
    for (const one of others) one.remove();
    return true;
  }

  function redraw() {
    clearTimeout(redrawing);
    const again = () => {
      if (!job.isConnected || document.hidden) return;
      source.close();
      reload();
    };
    redrawing = setTimeout(again, Math.max(0, redrawn + REDRAW_MS - Date.now()));
  }

  /** A row for a point that the worker did not plan. */
  function addRow(point) {
    const table = document.getElementById("bests");
    if (!table) return null;
    table.closest(".scroll").hidden = false;
    const row = table.insertRow();
    row.dataset.point = point;
    const head = element("th", point.replace(/ \S+$/, "").replace(/^M=/, ""), "n");
    head.scope = "row";
    row.append(head, element("td", point.replace(/^.* /, "")), element("td", "", "n"));
    row.append(element("td", "–", "n"), element("td", "–", "n"), element("td", "", "gain"));
    return row;
  }

  function addStep(step) {
    const list = document.getElementById("events");
    const time = element("time", `${step.at.slice(0, 19).replace("T", " ")} UTC`);
    time.dateTime = step.at;
    time.dataset.seconds = "";
    // Trials that follow each other are one step, as the server lists them.
    const newest = list.firstElementChild;
    const before = newest?.classList.contains("trials") ? Number(newest.dataset.tried) : null;
    const item = element("li", "", step.kind);
    item.dataset.tried = (before ?? 0) + step.data.tried;
    const said = `${digits.format(item.dataset.tried)} tried`;
    item.append(element("span", step.kind, "kind"), " ", time, element("span", said, "data"));
    if (before === null) list.prepend(item);
    else newest.replaceWith(item);
    showTimes(item);
  }

  async function reload() {
    redrawn = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html");
      const next = fresh.getElementById("job");
      if (!answer.ok || !next) {
        location.reload();
        return;
      }
      document.removeEventListener("visibilitychange", pause);
      document.title = fresh.title;
      document.querySelector("link[rel=icon]").href = fresh.querySelector("link[rel=icon]").href;
      job.replaceWith(document.adoptNode(next));
      showTimes(next);
      if (next.dataset.events) follow(next, showTimes);
    } catch {
      setOffline(true);
      setTimeout(reload, RETRY_MS);
    }
  }
}

const STEPS = [
  ...["submitted", "waiting", "joined", "withdrawn", "leased", "running", "planned", "trials"],
  ...["requeued", "refused", "retried", "cancel_requested", "done", "failed", "cancelled", "dead"],
];

function setOffline(is) {
  const said = document.getElementById("offline");
  if (said) said.hidden = !is;
}
