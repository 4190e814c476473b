// Elements of the page. All that comes from a server is set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with a text, if there is one, and a class. */
export function newElement(name, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** An element of a drawing, with its attributes. */
export function newDrawing(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  if (text !== undefined) element.textContent = text;
  return element;
}

export function button(text, act) {
  const element = newElement("button", text);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

/** A dialog with a heading, what it has, and buttons that close it: by their texts, what they return. */
export function newDialog(id, heading, parts, buttons) {
  const dialog = newElement("dialog");
  dialog.id = id;
  const form = newElement("form");
  form.method = "dialog";
  const title = newElement("h2", heading);
  title.id = `${id}-heading`;
  dialog.setAttribute("aria-labelledby", title.id);
  const row = newElement("p", undefined, "row");
  row.append(...Object.entries(buttons).map(([text, value]) => Object.assign(newElement("button", text), { value })));
  form.append(title, ...parts, row);
  dialog.append(form);
  document.body.append(dialog);
  return dialog;
}

/** Set a text only where it differs: what did not change is not read again by a screen reader. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table; heads are pairs of a text and whether the column holds numbers. */
export function table(caption, heads, rows) {
  const element = newElement("table");
  element.append(newElement("caption", caption));
  const head = element.createTHead().insertRow();
  heads.forEach(([text, isNumber]) => {
    const cell = newElement("th", text, isNumber ? "number" : "");
    cell.scope = "col";
    head.append(cell);
  });
  const body = element.createTBody();
  rows.forEach((row) => {
    const line = body.insertRow();
    row.forEach((text, index) => {
      const cell = newElement("td", text, heads[index][1] ? "number" : "");
      cell.dataset.head = heads[index][0]; // where there is no room for columns, each cell says it
      line.append(cell);
    });
  });
  return element;
}
