// The offline page: results that are embedded in it.

import { embedded, start } from "./main.js";

const data = JSON.parse(document.getElementById("data").textContent);
start(data, data.sources.map(embedded));
