// Tabs, as the ARIA practices have them: one stop of the Tab key, arrows move between.

function tabs(data, own) {
  const list = node("div", "tfos-tabs", { role: "tablist", "aria-label": "Views of the run" });
  const panes = node("div", "tfos-panes");
  const id = `tfos-${Math.random().toString(36).slice(2, 10)}`;
  const entries = [["Curves", curvesAndTimes], ["Workers", workers], ["Log", log], ["TensorBoard", tensorboard]].map(
    ([name, make], index) => {
      const names = { role: "tab", id: `${id}-tab-${index}`, "aria-controls": `${id}-pane-${index}`, type: "button" };
      const tab = node("button", "tfos-tab", names, name);
      const part = make(data, own);
      const owner = { role: "tabpanel", id: `${id}-pane-${index}`, "aria-labelledby": names.id, tabindex: 0 };
      const pane = node("div", `tfos-pane tfos-pane-${name.toLowerCase()}`, owner, part.root);
      list.append(tab);
      panes.append(pane);
      tab.addEventListener("click", () => select(index));
      return { name, tab, pane, part };
    },
  );
  let chosen = 0;
  const select = (index, focus = false) => {
    chosen = index;
    entries.forEach(({ tab, pane }, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
      pane.hidden = at !== index;
    });
    entries[index].part.draw();
    list.closest(".tfos-panel")?.classList.toggle("tfos-wide", entries[index].name === "TensorBoard");
    if (focus) entries[index].tab.focus();
  };
  list.addEventListener("keydown", (event) => {
    const open = entries.map((_, index) => index).filter((index) => !entries[index].tab.hidden);
    const at = open.indexOf(chosen);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: open.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    select(open[(to + open.length) % open.length], true);
  });
  select(0);
  return {
    root: node("div", "tfos-body", {}, list, panes),
    draw() {
      const troubled = data.get("workers").filter((worker) => wholeWorker(worker)[8]).length;
      write(entries[1].tab, troubled ? `Workers · ${troubled} ⚠` : "Workers");
      if (troubled) entries[1].tab.setAttribute("aria-label", `Workers, ${troubled} in trouble`);
      else entries[1].tab.removeAttribute("aria-label");
      entries[3].tab.hidden = !data.get("tensorboard_url");
      entries[chosen].part.draw();
    },
    close: () => entries.forEach(({ part }) => part.close?.()),
  };
}

function curvesAndTimes(data, own) {
  const both = [curves(data, own), timesAndFeeds(data, own)];
  return {
    root: node("div", "", {}, ...both.map((part) => part.root)),
    draw: () => both.forEach((part) => part.draw()),
    close: () => both[0].close(),
  };
}

function failure(data) {
  const root = node("p", "tfos-error", { role: "alert" });
  return {
    root,
    draw() {
      write(root, data.get("picture").error);
      root.hidden = !data.get("picture").error;
    },
  };
}

function messages(data) {
  const error = failure(data);
  const notices = node("ul", "tfos-notices", { "aria-label": "Notices" });
  return {
    root: node("div", "tfos-messages", {}, error.root, notices),
    draw() {
      const picture = data.get("picture");
      error.draw();
      fill(notices, picture.notices, () => node("li", ""), write);
    },
  };
}

// What a page can show: a name for screen readers, and the functions that make it, top to bottom.

const PARTS = {
  panel: ["Training run", header, overallBar, metrics, tabs, messages],
  progress: ["Progress of the run", (data, own) => header(data, own, false), overallBar, metrics, failure],
  curves: ["Curves of the run", curves],
  workers: ["Workers of the run", workers],
  log: ["Log of the run", log],
  stop: ["Stop the run", (data, own) => stopButton(data, own, true)],
  feeds: ["DataFrames of the run", feedsOrNone],
  compare: ["Runs compared", compare],
  cluster: ["Cluster", cluster],
  sweep: ["Sweep", header, overallBar, metrics, sweepOf, messages],
};
const VALUES = ["picture", "workers", "charts", "lines", "tensorboard_url"];
const SAVE_MS = 100;

function feedsOrNone(data, own) {
  const release = (item, feed) => {
    const button = item.children[3] ?? node("button", "tfos-stop", { type: "button" }, "Release");
    if (!button.parentNode) {
      button.addEventListener("click", () => own.model.send({ ask: "release", name: button.dataset.name }));
      item.append(button);
    }
    button.dataset.name = feed.name;
    button.setAttribute("aria-label", `Release ${feed.name}`);
    button.hidden = feed.state === "released" || own.gone || !feed.done || !data.get("picture").ended;
  };
  const feeds = feedTable(data, release);
  const empty = node("p", "tfos-muted tfos-empty", {}, "");
  const error = node("p", "tfos-error", { role: "alert" });
  own.hear(["error"], () => {});
  return {
    root: node("div", "", {}, empty, feeds.root, error),
    draw() {
      feeds.draw();
      empty.hidden = data.get("picture").feeds.length > 0;
      write(empty, data.get("run_id") ? "No DataFrame has been fed." : "DataFrames are shown as soon as there is a run.");
      write(error, own.get("error", ""));
      error.hidden = !own.get("error", "");
    },
  };
}

// The settings of one part, which are traits of its widget `model`. `gone` says that there is no kernel any more.
function settingsOf(model, runs, changed) {
  const heard = [];
  let saving = 0;
  const on = (name, callback) => {
    model.on(name, callback);
    heard.push([name, callback]);
  };
  return {
    gone: false,
    runs,
    model,
    get: (name, other) => model.get(name) ?? other,
    tell(name, value) {
      if (model.get(name) === undefined || model.get(name) === value) return;
      model.set(name, value);
      saving ||= setTimeout(() => {
        saving = 0;
        model.save_changes();
      }, SAVE_MS);
    },
    hear(names, callback) {
      names.forEach((name) => on(`change:${name}`, () => {
        callback();
        changed();
      }));
    },
    on,
    close() {
      clearTimeout(saving);
      heard.forEach(([name, callback]) => model.off(name, callback));
    },
  };
}

// For as long as a part is shown, what would stand in for it is not (see spare_card.py and shown.py).
function withoutSpare(run, part) {
  const spares = [`[data-run="${CSS.escape(run)}"]`, `[data-parts~="${CSS.escape(part)}"]`];
  return node("style", "", {}, spares.map((spare) => `.tfos-spare${spare} { display: none }`).join(" "));
}

// Updates of displays do not find the outputs of a page that was loaded anew: it puts there itself what is to be kept.
function keep(model, kept) {
  for (const cell of model.widget_manager?.context?.model?.cells ?? []) {
    const outputs = cell.outputs;
    for (let at = 0; at < (outputs?.length ?? 0); at += 1) {
      const output = outputs.get(at);
      const html = String(output.data?.["text/html"] ?? "");
      const bundle = kept[/data-kept="([^"]*)"/.exec(html)?.[1]];
      if (bundle && bundle["text/html"] !== html) outputs.set(at, { ...output.toJSON(), data: bundle });
    }
  }
}

// Calls `died` when the kernel is. One that the server starts anew by itself, as after it was killed, leaves the widgets
// as they are: JupyterLab cuts them off only where the user restarts it. Gives what ends the calls.
function onDeath(model, died) {
  const kernel = model.widget_manager?.kernel;
  const hear = (_, status) => {
    if (["autorestarting", "restarting", "terminating", "dead"].includes(status)) died();
  };
  kernel?.statusChanged?.connect(hear);
  kernel?.disposed?.connect(died);
  return () => {
    kernel?.statusChanged?.disconnect(hear);
    kernel?.disposed?.disconnect(died);
  };
}

// Shows a part in `el`: `model` is its widget, `data` has the values of its run, `runs` those of all that it compares.
function mount({ el, kind, model, data, runs = [] }) {
  const [label, ...makers] = PARTS[kind];
  const root = node("section", kind === "panel" || model === data ? "tfos-panel" : "tfos-panel tfos-part", { "aria-label": label });
  root.dataset.part = kind;
  if (model !== data) root.classList.add("tfos-wide"); // put somewhere by a person, and not under a cell
  const left = node("p", "tfos-muted", { role: "status" }, "As it was when the kernel went.");
  let parts = [];
  const draw = () => {
    root.dataset.phase = own.gone ? "gone" : data.get("picture").phase;
    left.hidden = !own.gone || kind === "stop" || data.get("picture").ended || root.querySelector(".tfos-headline") !== null; // says so itself
    for (const part of parts) part.draw();
  };
  let asked = 0; // several values of one message are drawn once
  const soon = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      draw();
    });
  };
  const own = settingsOf(model, runs, soon);
  let died = false;
  const look = () => {
    own.gone = died || el.closest(".jupyter-widgets-disconnected") !== null;
    soon();
  };
  own.on("comm_live_update", () => setTimeout(look));
  const forget = onDeath(model, () => {
    died = true;
    look();
  });
  parts = makers.map((make) => make(data, own));
  root.append(left, ...parts.map((part) => part.root));
  root.append(withoutSpare(kind === "panel" ? data.get("run_id") : "", own.get("key", "")));
  el.append(root);
  draw();
  const settle = () => setTimeout(() => keep(model, data.get("kept") ?? {})); // after the kernel's own updates
  settle();
  data.on("change:kept", settle);
  const watched = [...new Set([data, ...runs])];
  const names = [...VALUES, ...(data.get("blocks") ?? [])].map((name) => `change:${name}`);
  watched.forEach((values) => names.forEach((name) => values.on(name, soon)));
  return () => {
    cancelAnimationFrame(asked);
    data.off("change:kept", settle);
    watched.forEach((values) => names.forEach((name) => values.off(name, soon)));
    parts.forEach((part) => part.close?.());
    own.close();
    forget();
    root.remove();
  };
}

export default { render: ({ model, el }) => mount({ el, kind: model.get("kind") ?? "panel", model, data: model }), mount };
