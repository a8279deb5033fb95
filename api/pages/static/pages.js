// What pages do beyond reading: the reader's time zone, the theme, filters, and a job as it happens.

const YEAR_S = 31_536_000;
let zones; // made where a page has a time: a browser takes 10 ms for it

/** Shows the times below an element in the reader's zone; a pointer on one shows UTC. */
function showTimes(within) {
  for (const time of within.querySelectorAll("time:not([data-shown])")) {
    zones ??= ["short", "medium"].map(
      (timeStyle) => new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle }),
    );
    const [minutes, seconds] = zones;
    const at = new Date(time.dateTime);
    time.dataset.shown = "";
    if ("ago" in time.dataset) {
      time.title = `${seconds.format(at)} (${time.title})`;
    } else {
      time.title = time.textContent;
      time.textContent = ("seconds" in time.dataset ? seconds : minutes).format(at);
    }
  }
  if (zones) document.getElementById("zone").textContent = zones[0].resolvedOptions().timeZone;
}

function offerThemes() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const say = () => button.setAttribute("aria-label", `Theme: ${now()}. Change it.`);
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = now() === "dark" ? "light" : "dark";
    const system = next === (dark.matches ? "dark" : "light");
    if (system) delete root.dataset.theme;
    else root.dataset.theme = next;
    // The server writes it into each page, so that a chosen theme does not flash.
    document.cookie = `theme=${system ? "" : next}; path=/; samesite=lax; max-age=${system ? 0 : YEAR_S}`;
    say();
  });
  dark.addEventListener("change", say);
  say();
}

/** A list changes as soon as a filter does. */
function followFilters(within) {
  for (const form of within.querySelectorAll("form.filters")) {
    form.addEventListener("change", (event) => {
      if (event.target instanceof HTMLSelectElement) form.requestSubmit();
    });
  }
}

/** A button that ends something asks once more. The second click of a double click is no answer. */
function confirmDangers() {
  const ignore = (event) => {
    if (event.detail > 1 && event.target.closest("button")) event.preventDefault();
  };
  document.addEventListener("click", ignore);
  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!button?.matches(".danger, .asks")) return;
    if (button.dataset.sure) {
      button.form.elements.ask?.remove(); // or the server would ask as well
      return;
    }
    event.preventDefault();
    const text = button.textContent;
    button.dataset.sure = "yes";
    button.textContent = `${text}: sure?`;
    setTimeout(() => {
      delete button.dataset.sure;
      button.textContent = text;
    }, 4000);
  });
}

/** A button copies a secret; one that cannot be copied is selected at least. */
function offerCopies() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    const field = document.getElementById(button.dataset.copy);
    button.hidden = false;
    button.addEventListener("click", async () => {
      field.select();
      try {
        await navigator.clipboard.writeText(field.value); // on HTTPS and loopback
      } catch {
        if (!document.execCommand("copy")) return;
      }
      button.textContent = "Copied";
    });
  }
}

/** A page that answers a form gets the address of a page, so that loading it again sends nothing. */
function forgetForms() {
  const page = document.querySelector("[data-at]");
  if (page) history.replaceState(null, "", page.dataset.at);
}

/** The button below ticked boxes says how many jobs it queues. */
function countBoxes() {
  for (const form of document.querySelectorAll("form.boxes")) {
    const button = form.querySelector("button[data-many]");
    const say = () => {
      const count = form.querySelectorAll("input:checked").length;
      button.textContent = count === 1 ? button.dataset.one : button.dataset.many.replace("#", count);
      for (const one of form.querySelectorAll("button")) one.disabled = count === 0;
    };
    form.addEventListener("change", say);
    addEventListener("pageshow", say); // the browser has put back what was ticked
    say();
  }
}

const REFRESH_MS = 10_000;

/** A list that changes by itself comes anew while somebody looks at it and has ticked nothing. */
function refreshList() {
  const list = document.querySelector("[data-refresh]");
  if (!list) return;
  setInterval(async () => {
    const busy = list.querySelector("input:checked, :focus, button[data-sure]");
    if (document.hidden || busy) return;
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (!answer?.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = fresh.querySelector("[data-refresh]");
    if (!next || list.querySelector("input:checked, :focus")) return;
    list.replaceChildren(...document.adoptNode(next).childNodes);
    showTimes(list);
    followFilters(list);
  }, REFRESH_MS);
}

showTimes(document);
// A narrow window shows a part of the list of pages: the one with this page.
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
offerThemes();
followFilters(document);
refreshList();
confirmDangers();
countBoxes();
offerCopies();
forgetForms();

const job = document.querySelector("#job[data-events]");
if (job) {
  const { follow } = await import("./job.js");
  follow(job, showTimes);
}
