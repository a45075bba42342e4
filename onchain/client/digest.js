/**
 * The built-in model's story as transactions: prints backend, tokens, turns and the SHA-256 of the
 * final state, tab-separated, as crates/fixed/examples/digest.rs does.
 */

import { CoreSession, loadCore } from '../../web/package/src/index.js';
import { artifact, chain } from './litesvm.js';

const PARAMS = { prompt: 'Once upon a time', maxTokens: 120 };

const { client, owner, payer } = await chain();
const core = await (await loadCore()).model(artifact);
const model = await client.uploadModel(owner, artifact, 0n);
const session = CoreSession.start(core, PARAMS);
const run = await client.openRun(owner, model, PARAMS, session);
while (!session.info().complete) await client.turn(payer, model, run, session);
const { state } = await client.run(run);
const digest = Buffer.from(await crypto.subtle.digest('SHA-256', state)).toString('hex');
const { generated, turns } = session.info();
console.log(['litesvm', generated, turns, digest].join('\t'));
