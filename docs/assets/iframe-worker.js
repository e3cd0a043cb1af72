// Search runs in a worker, and browsers refuse workers to a page that is opened as a file. There, a hidden frame runs the
// script of the worker. Zensical loads its own substitute from another host unless a script has this file's name.
class FrameWorker {
  constructor(url) {
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) => {
      const event = new MessageEvent("message", { data: structuredClone(data) });
      setTimeout(() => this.onmessage?.(event));
    };
    this.loaded = new Promise((resolve) => {
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = resolve;
      inside.document.body.append(script);
    });
  }

  postMessage(data) {
    const event = new MessageEvent("message", { data: structuredClone(data) });
    this.loaded.then(() => this.frame.contentWindow?.dispatchEvent(event));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
