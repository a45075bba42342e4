/** A run as transactions equals the run in the core; what should fail fails, and changes nothing. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CoreSession, loadCore } from '../../../web/package/src/index.js';
import { readEvent } from '../src/index.js';
import { LIMIT } from '../src/client.js';
import { artifact, chain } from '../litesvm.js';

const PARAMS = { prompt: 'Once upon a time', maxTokens: 12 };

const median = (numbers) => {
  const sorted = numbers.toSorted((a, b) => a - b);
  const middle = sorted.length / 2;
  return (sorted[Math.ceil(middle) - 1] + sorted[Math.floor(middle)]) / 2;
};

test('the built-in model runs as transactions as it does in the core', async (t) => {
  const { svm, client, owner, payer } = await chain();
  const core = await (await loadCore()).model(artifact);
  const model = await client.uploadModel(owner, artifact, 700n);
  const session = CoreSession.start(core, PARAMS);
  const run = await client.openRun(owner, model, PARAMS, session);
  const first = client.turnInstruction(payer, model, run, 0, []);

  const refused = async (name, instruction, from = payer) => {
    const before = await client.account(run);
    await assert.rejects(client.sendAll(from, await instruction), (error) => error.refusal === name);
    assert.deepEqual(await client.account(run), before);
  };
  const units = [];
  while (!session.info().complete) {
    const { units: used, events, step } = await client.turn(payer, model, run, session);
    assert.ok(used <= LIMIT);
    const event = readEvent(events[0]);
    assert.equal(event.work, step.work);
    assert.equal(event.generated, step.generated);
    units.push(used);
    if (units.length === 1) {
      await refused('WrongTurn', first);
      const [section] = session.plan().sections;
      const swapped = { ...model, weights: model.weights.with(section, model.weights.at(-1)) };
      if (section !== model.weights.length - 1) {
        await refused('WrongSection', client.turnInstruction(payer, swapped, run, 1, [section]));
      }
      const zero = { ...model, weights: model.weights.with(0, run) };
      await refused('DuplicateAccount', client.turnInstruction(payer, zero, run, 1, [section]));
    }
  }
  t.diagnostic(`${units.length} turns, compute units: median ${median(units)}, peak ${Math.max(...units)} of ${LIMIT}`);
  const account = await client.run(run);
  assert.equal(account.status, 'complete');
  assert.equal(account.paid, 5000n * BigInt(units.length) + 700n * 12n);
  assert.equal(session.text(), ', there was a quiet boy named O');
  await refused('RunNotOpen', client.turnInstruction(payer, model, run, units.length, [1]));
  await assert.rejects(client.closeRun(payer, model, run), (error) => error.refusal === 'WrongAuthority');

  const before = svm.getBalance(owner.address);
  await client.closeRun(owner, model, run);
  assert.ok(svm.getBalance(owner.address) > before);
  assert.equal(await client.account(run), null);
});
