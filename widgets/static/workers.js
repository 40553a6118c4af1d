// Workers: rows of a table while they are few, cells of a grid when they are many.
// A worker is [where, state, step, fraction, pace, data, peers, memory, trouble]; its index is its rank. Of very many
// workers those that nobody asks for are [state, fraction, trouble].

const COLUMNS = ["Worker", "Where", "State", "Step", "Pace", "Waits: data", "Waits: others", "Memory"];

function workers(data, own) {
  const head = node("tr", "", {}, ...COLUMNS.map((name) => node("th", "", { scope: "col" }, name)));
  const body = node("tbody", "");
  const table = node("table", "tfos-workers", { "aria-label": "Workers" }, node("thead", "", {}, head), body);
  const grid = node("div", "tfos-cells", { role: "listbox", "aria-label": "Workers", tabindex: 0 });
  const detail = node("p", "tfos-detail", { role: "status" });
  const summary = node("p", "tfos-muted tfos-summary");
  const empty = node("p", "tfos-muted tfos-empty", {}, "Workers are shown as soon as there is a run.");
  const id = `tfos-${Math.random().toString(36).slice(2, 10)}`;
  let chosen = 0;

  const row = () => {
    const made = node("tr", "", { tabindex: 0 }, node("th", "", { scope: "row" }));
    for (let index = 1; index < COLUMNS.length; index += 1) made.append(node("td", index === 1 ? "tfos-where" : ""));
    return made;
  };
  const drawRow = (item, worker, rank) => {
    const [where, state, step, , pace, data, peers, memory, trouble] = worker;
    const texts = [`${rank}`, where, stateText(state, trouble), step, pace, data, peers, memory];
    texts.forEach((text, index) => write(item.children[index], text));
    item.dataset.trouble = trouble;
    item.children[1].title = where;
  };
  const cell = (rank) => node("div", "tfos-cell", { role: "option", id: `${id}-${rank}` }, node("i", ""), node("b", ""));
  const drawCell = (item, worker, rank) => {
    const [, state, , fraction, , , , , trouble] = worker;
    const label = `worker ${rank}, ${stateText(state, trouble)}`;
    if (item.getAttribute("aria-label") !== label) item.setAttribute("aria-label", label);
    if (item.dataset.trouble !== trouble) item.dataset.trouble = trouble;
    const sign = { "": "", lost: " ✗", failed: " ✗" }[trouble] ?? " ⚠";
    write(item.lastElementChild, `${rank}${sign}`);
    const transform = `scaleX(${fraction})`;
    if (item.firstElementChild.style.transform !== transform) item.firstElementChild.style.transform = transform;
  };
  const list = () => data.get("workers").map(wholeWorker);
  const describe = () => {
    const worker = wholeWorker(data.get("workers")[chosen]);
    if (!worker) return;
    const [where, state, step, , pace, feed, peers, memory, trouble] = worker;
    const waits = [feed && `waits ${feed} for data`, peers && `${peers} for others`];
    const parts = [where, stateText(state, trouble), step && `step ${step}`, pace, ...waits, memory];
    write(detail, `Worker ${chosen}: ${parts.filter(Boolean).join(" · ")}`);
  };
  const choose = (rank, byUser = true) => {
    grid.children[chosen]?.setAttribute("aria-selected", "false");
    chosen = rank;
    grid.children[chosen]?.setAttribute("aria-selected", "true");
    grid.setAttribute("aria-activedescendant", `${id}-${rank}`);
    grid.children[chosen]?.scrollIntoView({ block: "nearest" });
    [...body.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === chosen)));
    if (data.get("workers")[rank]?.length < 4) data.send({ ask: "worker", rank });
    describe();
    if (byUser) own.tell("selected_worker", chosen);
  };
  own.hear(["selected_worker"], () => {
    const rank = own.get("selected_worker", null);
    if (rank !== null && rank !== chosen) choose(rank, false);
  });
  body.addEventListener("click", (event) => {
    const found = event.target.closest("tr");
    if (found) choose([...body.children].indexOf(found));
  });
  body.addEventListener("keydown", (event) => {
    const found = event.target.closest("tr");
    if (!found || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    event.stopPropagation();
    choose([...body.children].indexOf(found));
  });
  grid.addEventListener("click", (event) => {
    const found = event.target.closest(".tfos-cell");
    if (found) choose([...grid.children].indexOf(found));
  });
  grid.addEventListener("keydown", (event) => {
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const last = grid.children.length - 1;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -last, End: last, Enter: 0, " ": 0 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    choose(Math.min(last, Math.max(0, chosen + moves[event.key])));
  });
  return {
    root: node("div", "tfos-scroll", {}, summary, empty, table, grid, detail),
    draw() {
      const all = list();
      const many = all.length > TABLE_ROWS;
      table.hidden = many || all.length === 0;
      empty.hidden = all.length > 0;
      fill(body, many ? [] : all, row, drawRow);
      fill(grid, many ? all : [], cell, drawCell);
      const preset = own.get("selected_worker", null);
      if (all.length && (many || preset !== null) && !grid.hasAttribute("aria-activedescendant")) choose(preset ?? 0, false);
      detail.hidden = !many;
      summary.hidden = !many;
      if (many) {
        const troubled = all.map((worker, rank) => [rank, worker[8]]).filter(([, trouble]) => trouble);
        const named = troubled.slice(0, 6).map(([rank, trouble]) => `${rank} ${trouble}`).join(", ");
        const more = troubled.length > 6 ? ` and ${troubled.length - 6} more` : "";
        write(summary, `${all.length} workers${troubled.length ? ` · in trouble: ${named}${more}` : ", none in trouble"}`);
        describe();
      }
    },
  };
}

// All of a worker, of which only its state may be known.
function wholeWorker(worker) {
  return worker?.length < 4 ? ["", worker[0], "", worker[1], "", "", "", "", worker[2] ?? ""] : worker;
}

function stateText(state, trouble) {
  return trouble && trouble !== state ? `${state} · ⚠ ${trouble}` : trouble ? `⚠ ${state}` : state;
}
