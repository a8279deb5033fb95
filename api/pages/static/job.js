// A job as it happens: trials update the numbers in place, other steps load the page's content anew.

const MOST_STEPS = 60;
const RETRY_MS = 2000;
const digits = new Intl.NumberFormat("en");

const us = (value) =>
  value >= 1000 ? digits.format(Math.round(value)) : value.toFixed(value < 10 ? 2 : 1);

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** Follows the job of an element until it ends. Every text of the server is set as text. */
export function follow(job, showTimes) {
  const seen = Number(job.dataset.seen);
  const source = new EventSource(`${job.dataset.events}?after=${seen}`);
  const began = performance.now();
  let triedHere = 0;

  // A browser has six connections for a host, and a hidden tab needs none of them.
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
      if (step.kind === "trials") {
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
    triedHere += step.data.tried;
    const minutes = (performance.now() - began) / 60000;
    if (minutes > 0.05) {
      document.getElementById("rate").textContent = `${Math.round(triedHere / minutes)} a minute`;
    }
    for (const [point, time] of Object.entries(step.data.best_us)) showBest(point, time);
    addStep(step);
  }

  function showBest(point, time) {
    const table = document.getElementById("bests");
    if (!table) return;
    table.closest(".scroll").hidden = false;
    let cell = table.querySelector(`[data-point="${CSS.escape(point)}"]`);
    if (!cell) {
      const row = table.insertRow();
      const head = element("th", point);
      head.scope = "row";
      cell = element("td", "", "n");
      cell.dataset.point = point;
      row.append(head, cell);
    }
    cell.textContent = us(time);
  }

  function addStep(step) {
    const list = document.getElementById("events");
    const time = element("time", `${step.at.slice(0, 16).replace("T", " ")} UTC`);
    time.dateTime = step.at;
    const item = element("li", "", step.kind);
    const said = `${step.data.tried} tried`;
    item.append(element("span", step.kind, "kind"), " ", time, element("span", said, "data"));
    list.prepend(item);
    while (list.children.length > MOST_STEPS) list.lastElementChild.remove();
    showTimes(item);
  }

  async function reload() {
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
  ...["submitted", "waiting", "joined", "withdrawn", "leased", "running", "trials", "requeued"],
  ...["refused", "retried", "cancel_requested", "done", "failed", "cancelled", "dead"],
];

function setOffline(is) {
  const said = document.getElementById("offline");
  if (said) said.hidden = !is;
}
