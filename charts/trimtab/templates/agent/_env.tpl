{{/* Environment of the agents. */}}
{{- define "trimtab.agentEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if eq .Values.agent.backend "nvml" }}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- end }}
{{ include "trimtab.commonEnv" . }}
{{- with include "trimtab.metricsEnv" (list . "agent") | trim }}{{ . | nindent 0 }}{{ end }}
- name: TRIMTAB_AGENT__BACKEND
  value: {{ .Values.agent.backend }}
- name: TRIMTAB_AGENT__SAMPLE_SECONDS
  value: {{ .Values.agent.sampleSeconds | quote }}
- name: TRIMTAB_AGENT__REPORT_SECONDS
  value: {{ .Values.agent.reportSeconds | quote }}
{{- with .Values.agent.dcgmUrl }}
- name: TRIMTAB_AGENT__DCGM_URL
  value: {{ . }}
{{- end }}
{{- with .Values.agent.profile }}
- name: TRIMTAB_AGENT__PROFILE
  value: /etc/trimtab/profile/profile.yaml
{{- end }}
{{- end }}

{{/* Any of these labels makes a node one with GPUs; where fake nodes are, those are not for real agents. */}}
{{- define "trimtab.gpuNodes" -}}
{{- $real := .Values.fakeNodes.enabled | ternary ", { key: fake.trimtab.dev/profile, operator: DoesNotExist }" "" -}}
- matchExpressions: [{ key: nvidia.com/gpu.present, operator: In, values: ["true"] }{{ $real }}]
- matchExpressions: [{ key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"] }{{ $real }}]
- matchExpressions: [{ key: feature.node.kubernetes.io/pci-1002.present, operator: In, values: ["true"] }{{ $real }}]
- matchExpressions: [{ key: cloud.google.com/gke-accelerator, operator: Exists }{{ $real }}]
- matchExpressions: [{ key: karpenter.k8s.aws/instance-gpu-name, operator: Exists }{{ $real }}]
- matchExpressions: [{ key: gpu.nvidia.com/model, operator: Exists }{{ $real }}]
{{- end }}
