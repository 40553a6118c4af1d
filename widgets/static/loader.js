// What each part brings along: it finds the values of its run in another widget, and the drawing code beside them, which
// is loaded once for all parts of a page.

const PREFIX = "IPY_MODEL_";
const libraries = (globalThis.tfosLibraries ??= new Map());

function libraryOf(data) {
  const source = data.get("_esm");
  if (!libraries.has(source)) {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    libraries.set(source, import(url).finally(() => URL.revokeObjectURL(url)));
  }
  return libraries.get(source);
}

async function render({ model, el }) {
  const find = (reference) => model.widget_manager.get_model(reference.slice(PREFIX.length));
  let close = () => {};
  let shown = 0; // what was asked for last is what stays
  const show = async () => {
    const turn = (shown += 1);
    const data = await find(model.get("data"));
    const runs = await Promise.all((model.get("panels") ?? []).map(find));
    const { mount } = (await libraryOf(data)).default;
    if (turn !== shown) return;
    close();
    close = mount({ el, kind: model.get("part"), model, data, runs });
  };
  await show();
  ["change:data", "change:panels"].forEach((name) => model.on(name, show));
  return () => {
    shown += 1;
    close();
  };
}

export default { render };
