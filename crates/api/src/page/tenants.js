// The selection of a tenant, if several tenants use one gateway.
//
// Some lists of the API are for one tenant, or for calls of no tenant. They are requested once for each selected tenant. Each
// row has its tenant, so that a change goes to the right one.

import { all, query } from "./api.js";
import { h, name, put, shown } from "./dom.js";

const ALL = "all";
const NONE = "none";
// With more tenants than this, only one can be selected at a time, because each one needs more requests.
const MANY = 20;

let known = [];
let chosen;
let changed = () => {};

export const whenChosen = (then) => {
  changed = then;
};

const choice = () => chosen ?? (known.length > MANY ? NONE : ALL);
const idOf = (tenant) => `tenant:${tenant}`;

// The selected tenants; null stands for calls of no tenant.
const scope = () => {
  if (choice() === ALL) return [null, ...known];
  return [known.find((tenant) => idOf(tenant) === choice()) ?? null];
};

export function drawTenants(tenants) {
  known = tenants;
  if (chosen && ![ALL, NONE, ...known.map(idOf)].includes(chosen)) chosen = undefined;
  const place = document.getElementById("tenants");
  place.hidden = known.length < 2;
  put(place, [known, choice()], () => {
    const options = [...(known.length > MANY ? [] : [[ALL, "all tenants"]]), [NONE, "no tenant"], ...known.map((tenant) => [idOf(tenant), shown(tenant)])];
    const select = h("select", { id: "tenant", "data-hand": "tenant" }, options.map(([value, label]) => h("option", { value, selected: value === choice() }, label)));
    select.addEventListener("change", () => {
      chosen = select.value;
      changed();
    });
    return [h("label", { for: "tenant" }, "Tenant"), select];
  });
}

// A list that the API returns for one tenant at a time: the rows of these fields, each with its tenant.
export async function ofEach(path, names, fields = {}) {
  const parts = await Promise.all(scope().map(async (tenant) => [tenant, await all(path, { ...fields, tenant })]));
  const rows = (field) => parts.flatMap(([tenant, part]) => part[field].map((row) => (tenant === null ? row : { ...row, tenant })));
  return Object.fromEntries(names.map((field) => [field, rows(field)]));
}

// The query of a list that the API returns for all tenants together, and the selected rows.
export const ofAll = (path, fields = {}) => query(path, { ...fields, tenant: choice() === ALL ? undefined : scope()[0] });
export const ofSelected = (rows) => (choice() === ALL ? rows : rows.filter((row) => (row.tenant ?? null) === scope()[0]));

// The path for a change of this tenant's data.
export const at = (path, tenant) => query(path, { tenant });

// The tenant of a row; nothing for rows of no tenant.
export const tenantTag = (tenant) => tenant && h("span", { class: "tag" }, "tenant ", name(tenant));
