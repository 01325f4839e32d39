{{/* The pod of everything that the operator's image does for fake nodes. Argument: list of root, arguments, and whether it is a Job's. */}}
{{- define "trimtab.fakePod" -}}
{{- $root := index . 0 -}}
{{- $job := index . 2 -}}
serviceAccountName: trimtab-fake-nodes
automountServiceAccountToken: false
enableServiceLinks: false
{{- if $job }}
restartPolicy: Never
{{- end }}
{{- include "trimtab.pullSecrets" $root }}
{{- include "trimtab.affinity" (list $root dict "") }}
{{- include "trimtab.placement" (dict "nodeSelector" $root.Values.controller.nodeSelector "tolerations" $root.Values.controller.tolerations) }}
securityContext:
  {{- include "trimtab.restrictedPod" $root | nindent 2 }}
containers:
  - name: fake-nodes
    image: {{ include "trimtab.image" (list $root $root.Values.controller.image) }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [python, -m, trimtab]
    args: {{ toJson (index . 1) }}
    {{- if not $job }}
    env:
      {{- include "trimtab.commonEnv" $root | nindent 6 }}
    ports:
      - name: metrics
        containerPort: {{ include "trimtab.metricsPort" "fake-nodes" }}
    {{- include "trimtab.probes" (list "/readyz" 60 10) | nindent 4 }}
    {{- end }}
    resources:
      {{- toYaml $root.Values.fakeNodes.resources | nindent 6 }}
    securityContext:
      {{- include "trimtab.restrictedContainer" $root | nindent 6 }}
    volumeMounts:
      {{- include "trimtab.tokenMount" $root | nindent 6 }}
      - name: tmp
        mountPath: /tmp
      - name: profile
        mountPath: /etc/trimtab/fake
        readOnly: true
      {{- if not $job }}
      {{- with include "trimtab.settingsMount" $root | trim }}{{ . | nindent 6 }}{{ end }}
      {{- end }}
volumes:
  {{- include "trimtab.tokenVolume" "0440" | nindent 2 }}
  - name: tmp
    emptyDir:
      medium: Memory
      sizeLimit: 16Mi
  - name: profile
    configMap:
      name: trimtab-fake-nodes
  {{- if not $job }}
  {{- with include "trimtab.settingsVolume" $root | trim }}{{ . | nindent 2 }}{{ end }}
  {{- end }}
{{- end }}
