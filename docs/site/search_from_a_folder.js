// Lets the search work where the site is opened from a folder: there a browser starts no worker. The worker's
// script runs in a hidden frame instead, and its messages are handed on.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #inside;

    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><body></body>";
      this.#inside = new Promise((ready) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.addEventListener("load", () => ready(inside));
          script.src = new URL(address, document.baseURI);
          inside.document.body.append(script);
        }, { once: true });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.#inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
