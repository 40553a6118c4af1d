// The cluster: its workers with what they hold, which runs it has, and its size and end.

const SURE_SECONDS = 5;
const DOUBLE_CLICK_MS = 700; // the second click of two is no answer

function cluster(data, own) {
  const headline = node("strong", "tfos-headline", { role: "status" });
  const about = node("span", "tfos-muted");
  const runs = node("p", "tfos-muted");
  const titles = ["Worker", "Host", "State", "Device", "Memory", "Spool"];
  const head = node("tr", "", {}, ...titles.map((name) => node("th", "", { scope: "col" }, name)));
  const body = node("tbody", "");
  const table = node("table", "tfos-workers tfos-cluster", { "aria-label": "Workers" }, node("thead", "", {}, head), body);
  const size = node("input", "tfos-select tfos-size", { type: "number", min: 1, step: 1, "aria-label": "Number of workers" });
  const scale = node("button", "tfos-stop", { type: "button" }, "Scale");
  const stop = node("button", "tfos-stop", { type: "button" }, "Stop cluster");
  const error = node("p", "tfos-error", { role: "alert" });
  const buttons = node("span", "tfos-aside", {}, size, scale, stop);
  let known = 0; // workers when the number was last written: what a person types stays
  scale.addEventListener("click", () => own.model.send({ ask: "scale", workers: Number(size.value) }));
  let asked = 0; // when it was asked whether a run is to end as well
  const calm = () => {
    asked = 0;
    write(stop, "Stop cluster");
  };
  stop.addEventListener("click", () => {
    if (asked && Date.now() - asked < DOUBLE_CLICK_MS) return;
    if (own.get("status", {}).busy_with && !asked) {
      asked = Date.now();
      write(stop, `End ${own.get("status", {}).busy_with} too?`);
      setTimeout(calm, SURE_SECONDS * 1000);
      return;
    }
    calm();
    own.model.send({ ask: "stop" });
  });
  size.addEventListener("keydown", (event) => event.stopPropagation());
  own.hear(["status"], () => {});
  const row = () => node("tr", "", {}, node("th", "", { scope: "row" }), ...titles.slice(1).map(() => node("td", "")));
  return {
    root: node("div", "", {}, node("div", "tfos-header", {}, headline, about, buttons), runs, table, error),
    draw() {
      const status = own.get("status", {});
      write(headline, own.gone ? `${status.headline}, until the kernel went` : status.headline);
      write(about, status.about);
      write(runs, status.runs);
      write(error, status.error);
      error.hidden = !status.error;
      runs.hidden = !status.runs || own.gone;
      buttons.hidden = !status.running || own.gone;
      for (const button of [scale, stop]) button.disabled = Boolean(status.busy);
      if (status.size !== known) size.value = known = status.size;
      fill(body, status.workers, row, (item, texts) => texts.forEach((text, at) => write(item.children[at], text)));
      table.hidden = status.workers.length === 0;
    },
  };
}
