// Runs side by side: their curves in one chart for each metric, and a table of their settings by their last metrics.

const TONES = ["#1976d2", "#e65100", "#2e9e44", "#8e44ad", "#c2185b", "#00838f", "#8d6e00", "#6d4c41"];

// A run keeps its colour where others come or go.
const toneOf = (run, index) => TONES[(run?.tone ?? index) % TONES.length];

function compare(data, own) {
  const grid = node("div", "tfos-charts");
  const head = node("tr", "");
  const body = node("tbody", "");
  const table = node("table", "tfos-workers tfos-compared", { "aria-label": "Runs" }, node("thead", "", {}, head), body);
  const empty = node("p", "tfos-muted tfos-empty", {}, "No runs to compare yet.");
  const aside = node("div", "tfos-about");
  const charts = [];
  const cursor = { x: null, kind: "", logarithmic: () => own.get("log_y", false) };
  const redraw = () => charts.forEach((chart) => chart.point());
  const moved = () => {
    redraw();
    if (cursor.kind === "epoch" || cursor.x === null) own.tell("cursor", cursor.x);
  };
  const widths = new ResizeObserver(() => charts.forEach((chart) => chart.paint()));
  widths.observe(grid);
  const hidden = () => new Set(own.get("hidden", []));
  own.hear(["hidden", "shown", "smooth", "log_y", "about"], () => {});
  own.hear(["cursor"], () => {
    Object.assign(cursor, { x: own.get("cursor", null), kind: "epoch" });
    redraw();
  });

  const row = (index) => {
    const tick = node("input", "", { type: "checkbox" });
    tick.addEventListener("change", () => {
      const left = hidden();
      if (tick.checked) left.delete(index);
      else left.add(index);
      own.tell("hidden", [...left].sort((a, b) => a - b));
      draw();
    });
    const tone = node("span", "tfos-tone", { "aria-hidden": "true" });
    return node("tr", "", {}, node("td", "", {}, tick), node("th", "", { scope: "row" }, tone, node("span", "")));
  };
  const cells = (item, texts) => {
    while (item.children.length > texts.length + 2) item.lastElementChild.remove();
    texts.forEach((text, at) => write(item.children[at + 2] ?? item.appendChild(node("td", "")), text));
  };

  const state = (picture) => (own.gone && !picture.ended ? "until the kernel went" : picture.phase);

  const drawTable = () => {
    const about = own.get("about", []);
    const settings = [...new Set(about.flatMap((run) => Object.keys(run.settings)))];
    const pictures = own.runs.map((run) => run.get("picture"));
    const names = [...new Set(pictures.flatMap((picture) => picture.metrics.map((metric) => metric.name)))];
    const titles = ["Show", "Run", ...settings, ...names, "State"];
    fill(head, titles, () => node("th", "", { scope: "col" }), write);
    fill(body, pictures, row, (item, picture, index) => {
      const name = about[index]?.name ?? picture.name;
      const tick = item.firstElementChild.firstElementChild;
      tick.checked = !hidden().has(index);
      tick.setAttribute("aria-label", `Show ${name}`);
      write(item.children[1].lastElementChild, name);
      item.children[1].firstElementChild.style.background = toneOf(about[index], index);
      const values = new Map(picture.metrics.map((metric) => [metric.name, metric.text]));
      const chosen = about[index]?.settings ?? {};
      cells(item, [...settings.map((key) => chosen[key] ?? ""), ...names.map((key) => values.get(key) ?? ""), state(picture)]);
    });
    table.hidden = pictures.length === 0;
    empty.hidden = pictures.length > 0;
  };

  const drawCurves = () => {
    const left = hidden();
    const about = own.get("about", []);
    const merged = new Map();
    own.runs.forEach((run, index) => {
      if (left.has(index)) return;
      const name = about[index]?.name ?? run.get("picture").name;
      for (const chart of chosenCharts(run.get("charts"), own)) {
        if (!merged.has(chart.name)) merged.set(chart.name, { ...chart, lines: [] });
        const tone = toneOf(about[index], index);
        const epochs = Math.max(...chart.lines.filter((line) => line.style !== "faint").map((line) => line.xs.length), 0);
        const lines = chart.lines.filter((line) => (line.style === "faint") === epochs < 2); // within the first epochs
        for (const line of lines)
          merged.get(chart.name).lines.push({ ...line, tone, name: line.style === "dashed" ? `${name} (val)` : name });
      }
    });
    const list = [...merged.values()];
    const said = own.runs.filter((_, index) => !left.has(index)).flatMap((run) => {
      const picture = run.get("picture");
      return aboutCurves({ ...picture, fit: picture.fit && `${picture.name}: ${picture.fit}` }, own);
    });
    fill(aside, list.length ? [...new Set(said)] : [], () => node("p", "tfos-muted"), write);
    while (charts.length > list.length) charts.pop().root.remove();
    list.forEach((chart, index) => {
      if (!charts[index]) grid.append((charts[index] = chartOf(cursor, moved)).root);
      charts[index].draw(chart);
    });
  };

  let drawn = [];
  const draw = () => {
    drawTable();
    const now = [own.get("hidden"), own.get("shown"), own.get("smooth"), own.get("log_y"), own.get("about")];
    now.push(...own.runs.map((run) => run.get("charts")));
    if (now.length === drawn.length && now.every((value, index) => value === drawn[index])) return;
    drawn = now;
    drawCurves();
  };
  return {
    root: node("div", "tfos-compare", {}, empty, grid, aside, node("div", "tfos-scroll", {}, table)),
    draw,
    close: () => widths.disconnect(),
  };
}
