// The API browser sends its requests from the page, with the key that the reader entered.
export function startApiBrowser() {
  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("[data-api-try]");
    if (!form) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const output = form.closest("details").querySelector("[data-api-response]");
    const query = new URLSearchParams();
    let path = form.dataset.path;
    let body;
    for (const input of form.querySelectorAll("[data-in]")) {
      if (input.dataset.in === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
      else if (input.dataset.in === "body") body = input.value;
      else if (input.value) query.append(input.name, input.value);
    }
    const headers = { Authorization: `Bearer ${document.querySelector("[data-api-key]").value}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    output.textContent = "…";
    form.closest("details").querySelector("[data-api-title]").textContent = "Response";
    try {
      const response = await fetch(`${path}?${query}`.replace(/\?$/, ""), { method: form.dataset.method, headers, body, credentials: "omit" });
      const text = await response.text();
      let shown = text;
      try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
      output.textContent = `${response.status}\n${shown}`;
    } catch (error) {
      output.textContent = `The control plane is unreachable: ${error.message}`;
    }
  }, true);
}
